# SPDX-License-Identifier: Apache-2.0
"""`gpulimit cdi`: what it writes is what runtimes take, and what it names is there."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from limiter import cdi, library_store
from limiter.cards import Card
from limiter.container_edits import ContainerEdits, Mount, limits, plain
from limiter.driver_files import libraries

SCHEMA = Path(
    "/usr/share/gocode/src/github.com/container-orchestrated-devices/container-device-interface/schema"
)
"""Where Debian's package of CDI has it."""


def check(spec: dict[str, Any]) -> None:
    """What the specification of CDI 0.3.0 demands."""
    assert spec["cdiVersion"] == "0.3.0"
    assert re.fullmatch(r"[a-z][a-z0-9.-]*/[a-z][a-z0-9_-]*", spec["kind"])
    names = [device["name"] for device in spec["devices"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9_.:-]*[A-Za-z0-9]", name) for name in names)
    for edits in [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]:
        assert edits and set(edits) <= {"env", "deviceNodes", "mounts", "hooks"}
        assert all("=" in entry for entry in edits.get("env", ()))
        assert all(node["path"].startswith("/dev/") for node in edits.get("deviceNodes", ()))
        for mount in edits.get("mounts", ()):
            assert mount["hostPath"].startswith("/") and mount["containerPath"].startswith("/")
            assert all(isinstance(option, str) for option in mount["options"])
    if SCHEMA.exists():
        check_schema(spec)


def check_schema(spec: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    defs = json.loads((SCHEMA / "defs.json").read_text())
    text = (SCHEMA / "schema.json").read_text().replace("defs.json#/definitions", "#/definitions")
    jsonschema.validate(spec, json.loads(text) | {"definitions": defs["definitions"]})


def test_simulated_cards_are_written(gpulimit, tmp_path: Path) -> None:
    output, folder = tmp_path / "cdi" / "gpulimit.json", tmp_path / "lib"
    gpulimit("cdi", "--sim", "--output", str(output), "--library-dir", str(folder), expect=0)
    spec = json.loads(output.read_text())
    check(spec)
    names = [device["name"] for device in spec["devices"]]
    assert names[0] == "limits" and names[2] == "gpu0" and names[-1] == "all" and names[1].startswith("GPU-")
    for mount in spec["containerEdits"]["mounts"][:2]:
        assert Path(mount["hostPath"]).is_file() and mount["options"][0] == "ro"
    assert output.stat().st_mode & 0o777 == 0o644
    assert not [path for path in output.parent.iterdir() if path != output], "nothing half-written is left"


def test_without_cards_or_daemon(gpulimit, tmp_path: Path) -> None:
    done = gpulimit("cdi", "--no-cards", "--no-daemon", "--library-dir", str(tmp_path / "lib"), expect=0)
    spec = json.loads(done.stdout)
    check(spec)
    assert [device["name"] for device in spec["devices"]] == ["limits"]
    assert "GPULIMIT_SOCKET" not in done.stdout


def test_a_machine_without_nvml_is_an_error(gpulimit, sim_env, tmp_path: Path) -> None:
    env = {k: v for k, v in sim_env.items() if k != "LD_LIBRARY_PATH"}
    done = gpulimit("cdi", "--library-dir", str(tmp_path / "lib"), env=env)
    if done.returncode == 0:
        pytest.skip("this machine has a driver")
    assert done.returncode == 1 and "NVML" in done.stderr and done.stdout == ""


def test_a_folder_that_cannot_be_written_is_an_error(gpulimit, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    done = gpulimit("cdi", "--sim", "--library-dir", str(file / "lib"))
    assert done.returncode == 1 and str(file) in done.stderr


def test_real_cards_are_device_files_and_the_driver_s_libraries() -> None:
    files = (Mount("/usr/lib64/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"),)
    card = Card("GPU-1", 0, "a card", 3)
    spec = cdi.specification(
        limits(library="/l.so", preload="/p", daemon="/d", socket="/run/gpulimit/hypervisor.sock"),
        [card],
        {"GPU-1": plain(["/dev/nvidia3"], files), "all": plain(["/dev/nvidia3"], files)},
        hook="/h",
    )
    check(spec)
    edits = spec["devices"][1]["containerEdits"]
    assert [node["path"] for node in edits["deviceNodes"]][:2] == ["/dev/nvidia3", "/dev/nvidiactl"]
    assert edits["mounts"][0]["containerPath"] == "/usr/local/nvidia/lib64/libcuda.so.1"


def test_the_driver_s_libraries_are_found_in_the_usual_folders(tmp_path: Path) -> None:
    folder = tmp_path / "usr/lib64"
    folder.mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libother.so.1"):
        (folder / name).write_text("")
    assert {mount.host for mount in libraries(tmp_path)} == {
        "/usr/lib64/libcuda.so.1",
        "/usr/lib64/libnvidia-ml.so.1",
    }
    assert libraries(tmp_path / "elsewhere") == ()


def test_a_name_that_no_runtime_takes_is_refused() -> None:
    with pytest.raises(ValueError):
        cdi.specification(
            ContainerEdits({"A": "b"}),
            [Card("2 bad", 0, "", 0)],
            {"2 bad": ContainerEdits(), "all": ContainerEdits()},
            hook="/h",
        )


# ---- where containers get the library from ----


def test_an_upgrade_leaves_the_file_in_use_alone(built, tmp_path: Path) -> None:
    first = library_store.place(built.library, tmp_path, "/run/g.sock")
    state = first.library.stat()
    assert library_store.place(built.library, tmp_path, "/run/g.sock") == first
    assert first.library.stat() == state, "what is there is not written again"
    other = tmp_path / "other.so"
    other.write_bytes(built.library.read_bytes() + b"\0")
    second = library_store.place(other, tmp_path, "/run/g.sock")
    assert second.library != first.library
    assert first.library.stat().st_ino == state.st_ino and first.library.exists()
    assert library_store.remove_unused(tmp_path, second.library, [b"..." + first.library.name.encode()]) == []
    assert library_store.remove_unused(tmp_path, second.library, [b"nothing"]) == [first.library]


def test_a_hundred_upgrades_under_a_running_program(built, start_process, tmp_path: Path) -> None:
    placed = library_store.place(built.library, tmp_path, "/run/g.sock")
    env = dict(os.environ) | {"LD_PRELOAD": str(placed.library)}
    loop = start_process(
        ["/bin/sh", "-c", "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done"], env=env
    )
    content = built.library.read_bytes()
    for number in range(100):
        library_store.put(tmp_path / f"libgpulimit-{number}.so", content + bytes([number]))
        library_store.put(placed.library, content)
    assert loop.wait(30) == 0 and loop.stderr.read() == ""


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF" + b"\0" * 60])
def test_a_library_that_cannot_be_preloaded_is_not_handed_out(content: bytes, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.so"
    wrong.write_bytes(content)
    with pytest.raises(library_store.NotPlaced):
        library_store.place(wrong, tmp_path / "lib", "/run/g.sock")
