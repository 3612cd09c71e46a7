# SPDX-License-Identifier: Apache-2.0
"""What a container is handed in each way of handing over, on cards that are not simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="needs the extra k8s")

from hypervisor.config.settings import Settings
from hypervisor.deviceplugin import api_v1beta1 as messages
from hypervisor.deviceplugin.allocation import ContainerAllocator, answer_of
from hypervisor.model import Gpu, GpuUuid
from limiter.library_store import NotPlaced

A, B = (Gpu(GpuUuid(f"GPU-{n}"), n, 80 << 30, "card", minor) for n, minor in ((0, 4), (1, 5)))


@pytest.fixture
def grants(built: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GPULIMIT_LIB_DIR", str(built.lib))

    def make(hand_over: str, root: Path = Path("/")) -> ContainerAllocator:
        settings = Settings(
            hand_over=hand_over,
            library_dir=str(tmp_path / "lib"),
            driver_root=str(root),
            cdi_dir=str(tmp_path / "cdi"),
        )
        return ContainerAllocator(settings, is_simulated=False)

    return make


def test_by_nvidia_s_runtime(grants) -> None:
    grant = grants("nvidia").of([A, B])
    assert grant.variables["NVIDIA_VISIBLE_DEVICES"] == "GPU-0,GPU-1"
    assert "NVIDIA_DRIVER_CAPABILITIES" not in grant.variables, "which are the image's to say"
    assert grant.nodes == grant.cdi == ()


def test_by_cdi(grants, tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    with pytest.raises(NotPlaced, match="cdi"):
        grants("cdi").of([A])
    folder.mkdir()
    answer = answer_of(grants("cdi").of([A, B]))
    read = messages.CLASSES["ContainerAllocateResponse"].FromString(answer.SerializeToString())
    names = ["nvidia.com/gpu=GPU-0", "nvidia.com/gpu=GPU-1", "gpulimit.io/preload=merged"]
    assert [device.name for device in read.cdi_devices] == names
    assert read.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert {m.container_path for m in read.mounts} >= {
        "/etc/ld.so.preload",
        "/usr/lib/gpulimit/libgpulimit.so",
    }
    (file,) = folder.iterdir()
    (device,) = json.loads(file.read_text())["devices"]
    (hook,) = device["containerEdits"]["hooks"]
    assert hook["hookName"] == "createContainer" and Path(hook["path"]).stat().st_mode & 0o777 == 0o755
    file.unlink()  # /var/run is empty after a reboot
    grants("cdi").of([A])
    assert file.exists()


def test_only_cdi_has_a_hook(grants, tmp_path: Path) -> None:
    grants("nvidia").of([A])
    assert not (tmp_path / "cdi").exists() and not (tmp_path / "lib/preload-hook").exists()


def test_by_the_plugin_itself(grants, tmp_path: Path) -> None:
    for name in ("dev/nvidiactl", "dev/nvidia-uvm", "usr/lib64/libcuda.so.1", "usr/lib64/libnvidia-ml.so.1"):
        (tmp_path / "host" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "host" / name).write_text("")
    answer = answer_of(grants("plain", tmp_path / "host").of([B]))
    assert [d.host_path for d in answer.devices] == ["/dev/nvidia5", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert all(d.permissions == "rw" for d in answer.devices)
    mounts = {m.container_path: m for m in answer.mounts}
    assert mounts["/usr/local/nvidia/lib64/libcuda.so.1"].host_path == "/usr/lib64/libcuda.so.1", (
        "the node's path"
    )
    assert all(m.read_only for m in answer.mounts)
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == "void", "else NVIDIA's runtime would add every card"


def test_what_is_missing_is_said(grants, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="libraries are not found"):
        grants("plain", tmp_path).of([A])
    with pytest.raises(ValueError, match="device file"):
        grants("plain", tmp_path).of([Gpu(GpuUuid("GPU-9"), 0, 1)])
