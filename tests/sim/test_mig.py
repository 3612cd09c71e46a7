# SPDX-License-Identifier: Apache-2.0
"""Quotas on MIG devices: found by their UUID in CUDA and NVML alike, each on its own."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from limiter.segment import read

from .conftest import Program
from .test_nvml_view import PROGRAM, Client

MIB, GIB = 1 << 20, 1 << 30
CARD = "GPU-7af45170-de0c-71ef-81f1-690ff4ea5263"
MIDDLE = "MIG-6e88e836-6dae-5b63-1274-06f6808f4420"  # 2g.20gb
SMALL = "MIG-d8f5d1a2-c004-7653-2365-ea14865f220e"  # 1g.10gb
MIDDLE_MIB, SMALL_MIB, CONTEXT_MIB = 20389, 10194, 518


@pytest.fixture
def mig_env(limited_env: dict[str, str]) -> dict[str, str]:
    return limited_env | {"GPULIMIT_SIM_PROFILE": "mig-h100", "CUDA_VISIBLE_DEVICES": MIDDLE}


@pytest.fixture
def start(mig_env: dict[str, str], start_process: Any) -> Any:
    """Start a client of CUDA and NVML on a MIG device; keyword arguments are its environment."""

    def begin(**environ: str) -> Client:
        return Client(start_process([sys.executable, PROGRAM], env=mig_env | environ, stdin=-1))

    return begin


@pytest.mark.parametrize("quota", ["10GiB", "*=10GiB"])
def test_whoever_asks_is_told_the_quota_and_never_the_whole_card(start: Any, quota: str) -> None:
    """By CUDA, by NVML's number (the card's), and by the UUID that is in the list of visible devices."""
    client = start(GPULIMIT_MEMORY=quota)
    free, total, result = client("cuda_info")
    assert (total, result) == (10 * GIB, 0) and free <= 10 * GIB - CONTEXT_MIB * MIB
    for device in (0, MIDDLE):
        for call in ("memory", "memory_v2"):
            assert client(call, device)["total"] == 10 * GIB, (call, device)
    assert client("memory", MIDDLE)["used"] >= CONTEXT_MIB * MIB
    assert client("alloc", 9 * GIB) == 0
    assert client("alloc", GIB) == 2
    rows = client("processes", "nvmlDeviceGetComputeRunningProcesses_v3", 8, MIDDLE)["rows"]
    assert [(r["pid"], r["gpuInstanceId"], r["computeInstanceId"]) for r in rows] == [(client.pid, 9, 0)]


def limits(program: Program, run_process: Any, env: dict[str, str]) -> tuple[str, int, int]:
    """Return the UUID's digits, total and granted MiB of the one device that a program sees."""
    ended = run_process([program("devices/limits")], env=env, expect=0)
    line, end = ended.stdout.splitlines()
    uuid, total, granted = line.split()
    assert end == "end"
    return uuid.partition("-")[2], int(total), int(granted) if granted != "-" else 0


@pytest.mark.parametrize(
    ("quota", "total"),
    [
        (f"{MIDDLE}=4GiB", 4096),
        (f"{MIDDLE.upper().replace('MIG', 'mig')}=4GiB", 4096),
        ("MIG-6e88=4GiB,*=1GiB", 4096),
        (f"{SMALL}=4GiB,*=1GiB", 1024),
        ("*=50%", MIDDLE_MIB // 2),  # of the MIG device
        ("1TiB", MIDDLE_MIB),  # as much as it has
    ],
)
def test_a_quota_names_a_mig_device_by_its_uuid(
    program: Program, run_process: Any, mig_env: dict[str, str], quota: str, total: int
) -> None:
    digits, seen, granted = limits(program, run_process, mig_env | {"GPULIMIT_MEMORY": quota})
    assert digits == MIDDLE.partition("-")[2]
    assert abs(seen - total) <= MIDDLE_MIB // 100, "less what the driver keeps"
    assert granted == (seen - CONTEXT_MIB) // 64 * 64


@pytest.mark.parametrize("quota", [f"{SMALL}=4GiB", f"{CARD}=4GiB", "0=4GiB", "2=4GiB"])
def test_a_quota_for_something_else_leaves_nothing_of_a_mig_device(
    program: Program, run_process: Any, mig_env: dict[str, str], quota: str
) -> None:
    """Not even the card's, or its number: numbers name whole cards, and nothing is unlimited by mistake."""
    _, total, granted = limits(program, run_process, mig_env | {"GPULIMIT_MEMORY": quota})
    assert (total, granted) == (0, 0)


def test_two_mig_devices_of_one_tenant_have_a_quota_each(start: Any, tenant: str, gpulimit: Any) -> None:
    one = start(GPULIMIT_MEMORY=f"{MIDDLE}=6GiB,{SMALL}=2GiB")
    other = start(GPULIMIT_MEMORY=f"{MIDDLE}=6GiB,{SMALL}=2GiB", CUDA_VISIBLE_DEVICES=SMALL)
    assert one("alloc", 5 * GIB) == 0 and one("alloc", GIB) == 2
    assert other("alloc", GIB) == 0 and other("alloc", GIB) == 2
    devices = {device.name: device for device in read(tenant).devices}
    assert devices.keys() == {MIDDLE, SMALL}
    assert devices[MIDDLE].memory_limit_bytes == 6 * GIB
    assert devices[SMALL].used_bytes == GIB + CONTEXT_MIB * MIB
    shown = json.loads(gpulimit("status", "--json", expect=0).stdout)
    assert MIDDLE in json.dumps(shown) and SMALL in json.dumps(shown)


def test_a_whole_card_is_no_mig_device(start: Any, tenant: str) -> None:
    client = start(GPULIMIT_MEMORY="2GiB", CUDA_VISIBLE_DEVICES="0")
    assert client("cuda_info")[1] == 2 * GIB
    (device,) = read(tenant).devices
    assert device.name.startswith("GPU-") and not device.is_mig
