# SPDX-License-Identifier: Apache-2.0
"""The daemon's metrics on a real card agree with NVML, with nvidia-smi, and with the tenants' own counts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import eventually, free_port
from tests.gpu.conftest import REHEARSAL, ROOT
from tests.metrics.conftest import Scrape, get

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120), pytest.mark.alone]
MIB, GIB = 1 << 20, 1 << 30
SECONDS = 14
TRUTH = """
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
m = n.nvmlDeviceGetMemoryInfo(h)
p = {x.pid: x.usedGpuMemory for x in n.nvmlDeviceGetComputeRunningProcesses(h)}
uuid = n.nvmlDeviceGetUUID(h)
print(json.dumps({"uuid": uuid if isinstance(uuid, str) else uuid.decode(), "used": m.used, "total": m.total,
    "power": n.nvmlDeviceGetPowerUsage(h) / 1000, "temperature": n.nvmlDeviceGetTemperature(h, 0),
    "energy": n.nvmlDeviceGetTotalEnergyConsumption(h) / 1000, "processes": p}))
"""


@pytest.fixture
def address(card_env: dict[str, str], tmp_path: Path, tenant: str, start_process: Any) -> Iterator[str]:
    port = free_port()
    options = {
        "socket": str(tmp_path / "d.sock"),
        "state-dir": str(tmp_path / "state"),
        "state-segment": f"gpulimit.s.{tenant}",
        "metrics-addr": f"127.0.0.1:{port}",
        "nvml-interval": "500ms",
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    argv = [sys.executable, "-P", "-m", "hypervisor", *flags, *(["--sim"] if REHEARSAL else [])]
    process = start_process(argv, env=card_env)
    yield f"127.0.0.1:{port}"
    process.terminate()
    process.wait(timeout=10)


@pytest.fixture
def load(
    card_env: dict[str, str], built: Any, tmp_path: Path, tenant: str, start_process: Any
) -> Callable[..., Any]:
    def start(name: str, *arguments: str, **quota: object) -> Any:
        limits = {f"GPULIMIT_{key.upper()}": str(value) for key, value in quota.items()}
        env = card_env | {
            "LD_PRELOAD": str(built.library),
            "GPULIMIT_SOCKET": str(tmp_path / "d.sock"),
            "GPULIMIT_TENANT": f"{tenant}-{name}",
        }
        argv = [sys.executable, "-P", "-m", "limiter", "load", "--json", *arguments]
        return start_process(argv, env=env | limits, cwd=ROOT)

    return start


def truth(env: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", TRUTH], env=env, capture_output=True, text=True, timeout=30, check=True
    )
    return dict(json.loads(done.stdout))


def scrape(address: str) -> Scrape:
    return Scrape(get(f"http://{address}/metrics")[1])


def is_ready(address: str) -> bool:
    try:
        return get(f"http://{address}/readyz")[0] == 200
    except OSError:
        return False


def test_metrics_agree_with_nvml_and_with_the_books(address, load, card_env, tenant, note) -> None:
    eventually(lambda: is_ready(address), within_s=20)
    one = load("a", "--seconds", str(SECONDS), "--memory", "1GiB", memory="4GiB")
    two = load("b", "--seconds", str(SECONDS), "--memory", "300MiB", memory="2GiB", compute=40)
    names = [f"{tenant}-a", f"{tenant}-b"]
    eventually(
        lambda: all(scrape(address).one("client_nvml_used_bytes", tenant=n) for n in names), within_s=30
    )
    time.sleep(2)
    first, first_at = scrape(address), time.monotonic()
    time.sleep(5)
    second, real, wall_s = scrape(address), truth(card_env), time.monotonic() - first_at
    card = {"gpu_uuid": real["uuid"]}
    assert second.one("gpu_memory_total_bytes", **card) == real["total"]
    assert second.one("gpu_memory_used_bytes", **card) == pytest.approx(real["used"], abs=64 * MIB)
    assert second.one("gpu_temperature_celsius", **card) == pytest.approx(real["temperature"], abs=5)
    assert second.one("gpu_energy_joules_total", **card) == pytest.approx(real["energy"], rel=0.05)
    used = sorted(second.one("client_nvml_used_bytes", tenant=n, **card) or 0 for n in names)
    assert set(used) <= set(real["processes"].values())
    for name, asked in zip(names, (GIB, 300 * MIB), strict=True):
        assert second.one("client_managed_allocated_bytes", tenant=name) == pytest.approx(asked, abs=2 * MIB)
    check_time(first, second, wall_s, [one, two], names, note)
    check_smi(second, real["uuid"])


def check_time(
    first: Scrape, second: Scrape, wall_s: float, processes: list[Any], names: list[str], note: Any
) -> None:
    """GPU time of the window against what the workloads count themselves, over their whole run."""
    shares = []
    for name, process in zip(names, processes, strict=True):
        before, after = (s.one("client_gpu_seconds_total", tenant=name) or 0 for s in (first, second))
        out, _ = process.communicate(timeout=60)
        own = json.loads(out)
        shares.append((after - before) / wall_s)
        note(f"share of {name[-1]}", {"metrics": shares[-1], "workload": own})
    assert 0.8 < sum(shares) < 1.15, shares
    assert shares[1] < 0.4 * 1.15, shares


def check_smi(page: Scrape, uuid: str) -> None:
    if shutil.which("nvidia-smi") is None or REHEARSAL:
        return
    fields = "memory.total,memory.used,temperature.gpu,power.draw"
    argv = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    total, used, temperature, _ = (float(x) for x in answer.stdout.split(","))
    card = {"gpu_uuid": uuid}
    # nvidia-smi leaves out what the driver keeps for itself, in some versions.
    assert page.one("gpu_memory_total_bytes", **card) == pytest.approx(total * MIB, rel=0.02)
    assert (page.one("gpu_memory_used_bytes", **card) or 0) + GIB > used * MIB
    assert page.one("gpu_temperature_celsius", **card) == pytest.approx(temperature, abs=10)
