# SPDX-License-Identifier: Apache-2.0
"""What NVML shows inside a tenant: the quota as the card, and the tenant's own processes alone."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pynvml")

MIB, GIB = 1 << 20, 1 << 30
PROGRAM = Path(__file__).parent / "nvml_view_program.py"
COMPUTE = "nvmlDeviceGetComputeRunningProcesses"
LISTS = [COMPUTE, f"{COMPUTE}_v2", f"{COMPUTE}_v3"]
SUCCESS, INVALID_ARGUMENT, NOT_FOUND, INSUFFICIENT_SIZE, GPU_IS_LOST, VERSION_MISMATCH = 0, 2, 6, 7, 15, 25


class Client:
    """A running nvml_view_program.py."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.pid = process.pid
        assert self.answer() == "ready"

    def answer(self) -> Any:
        line = self.process.stdout.readline()
        assert line, f"the program ended: {self.process.stderr.read()}"
        return json.loads(line)

    def __call__(self, command: str, *arguments: Any) -> Any:
        self.process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self.process.stdin.flush()
        return self.answer()


Start = Callable[..., Client]


@pytest.fixture
def start(limited_env: dict[str, str], start_process: Any) -> Start:
    """Start a limited client on the exact small card; keyword arguments are its environment."""

    def begin(**environ: str) -> Client:
        env = limited_env | {"GPULIMIT_SIM_PROFILE": "small"} | environ
        return Client(start_process([sys.executable, PROGRAM], env=env, stdin=-1))

    return begin


def total_is(view: dict[str, int]) -> int:
    """Return the total after checking that the parts make it."""
    assert view["free"] + view["used"] + view.get("reserved", 0) == view["total"]
    return view["total"]


def test_quota_is_the_card_without_any_cuda_call(start: Start) -> None:
    client = start(GPULIMIT_MEMORY="1GiB")
    assert client("memory") == {"total": GIB, "free": GIB, "used": 0}
    second = client("memory_v2")
    assert (second["total"], second["free"], second["used"], second["reserved"]) == (GIB, GIB, 0, 0)


def test_every_view_agrees_after_allocating(start: Start) -> None:
    client = start(GPULIMIT_MEMORY="1GiB")
    assert client("alloc", 300 * MIB) == 0
    first, second = client("memory"), client("memory_v2")
    free, total, _ = client("cuda_info")
    assert total == total_is(first) == total_is(second) == GIB
    assert free == first["free"] == second["free"] == GIB - 300 * MIB
    assert first["used"] == second["used"] == 300 * MIB


def test_use_of_other_processes_of_the_tenant_counts(start: Start) -> None:
    one, two = start(GPULIMIT_MEMORY="1GiB"), start(GPULIMIT_MEMORY="1GiB")
    assert one("alloc", 256 * MIB) == 0
    assert two("memory")["used"] == 256 * MIB
    one.process.kill()
    one.process.wait(timeout=10)
    assert two("memory")["used"] == 0


def test_lower_limit_of_a_later_process_is_its_own_view(start: Start) -> None:
    one, two = start(GPULIMIT_MEMORY="1GiB"), start(GPULIMIT_MEMORY="512MiB")
    assert one("alloc", 768 * MIB) == 0
    assert total_is(one("memory")) == GIB
    view = two("memory")
    assert (view["total"], view["free"], view["used"]) == (512 * MIB, 0, 512 * MIB)
    assert two("memory_v2")["free"] == 0


def test_limit_above_the_card_is_the_card(start: Start) -> None:
    assert start(GPULIMIT_MEMORY="1PiB")("memory")["total"] == 4 * GIB


@pytest.mark.parametrize(("profile", "card"), [("small", 4 * GIB), ("h100", (81559 - 551) * MIB)])
def test_share_of_the_card_is_the_same_in_every_view(start: Start, profile: str, card: int) -> None:
    client = start(GPULIMIT_SIM_PROFILE=profile, GPULIMIT_MEMORY="33%")
    total = client("memory")["total"]
    assert total == card * 33 // 100 // MIB * MIB
    assert client("cuda_info")[1] == total
    assert client("memory")["total"] == total == client("memory_v2")["total"]


def test_free_is_not_more_than_the_card_has(start: Start, tenant: str) -> None:
    other = start(GPULIMIT_TENANT=f"{tenant}-b", GPULIMIT_MEMORY="4GiB")
    assert other("alloc", 3584 * MIB) == 0
    client = start(GPULIMIT_MEMORY="1GiB")
    assert client("alloc", 128 * MIB) == 0
    first, second = client("memory"), client("memory_v2")
    card_free = 4 * GIB - 3584 * MIB - 128 * MIB
    assert (first["total"], first["free"], first["used"]) == (GIB, card_free, GIB - card_free)
    assert (second["free"], second["used"]) == (card_free, 128 * MIB)
    assert total_is(first) == total_is(second) == GIB


def test_wrong_version_is_refused_and_nothing_is_written(start: Start) -> None:
    client = start(GPULIMIT_MEMORY="1GiB")
    for version in (0, 1, 2, 0x01000028, 0x03000028, 0xFFFFFFFF):
        answer = client("memory_v2", 0, version)
        assert (answer["result"], answer["untouched"], answer["version"]) == (VERSION_MISMATCH, 1, version)


def test_no_byte_past_the_structure_is_written(start: Start) -> None:
    answer = start(GPULIMIT_MEMORY="1GiB")("memory_v2")
    assert (answer["result"], answer["canaries"], answer["version"]) == (SUCCESS, 1, 0x02000028)


@pytest.mark.parametrize("code", [GPU_IS_LOST, 4, 999])
def test_errors_of_nvml_come_through_unchanged(start: Start, code: int) -> None:
    rules = ",".join(
        f"{name}:fail={code}"
        for name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", f"{COMPUTE}_v3")
    )
    client = start(GPULIMIT_MEMORY="1GiB", GPULIMIT_SIM_FAULTS=rules)
    assert client("memory") == {"nvml_error": code}
    answer = client("memory_v2")
    assert (answer["result"], answer["untouched"]) == (code, 1)
    answer = client("processes", f"{COMPUTE}_v3", 4)
    assert (answer["result"], answer["count"], answer["canaries"]) == (code, 4, 1)


def test_missing_pointers_are_refused(start: Start) -> None:
    client = start(GPULIMIT_MEMORY="1GiB")
    for call in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", *LISTS):
        assert client("raw", call) == INVALID_ARGUMENT
    for call in LISTS:
        assert client("processes", call, 3, 0, False)["result"] == INVALID_ARGUMENT


@pytest.mark.parametrize("call", LISTS)
def test_process_list_follows_the_size_protocol(start: Start, call: str) -> None:
    one, two = start(GPULIMIT_MEMORY="1GiB"), start(GPULIMIT_MEMORY="1GiB")
    idle = two("processes", call, 0, 0, False)
    assert (idle["result"], idle["count"]) == (SUCCESS, 0)
    assert one("alloc", 256 * MIB) == 0
    assert two("alloc", 128 * MIB) == 0
    for room in (0, 1):
        answer = one("processes", call, room, 0, room > 0)
        assert (answer["result"], answer["count"], answer["canaries"]) == (INSUFFICIENT_SIZE, 2, 1)
    for room in (2, 5):
        answer = one("processes", call, room)
        assert (answer["result"], answer["count"], answer["canaries"]) == (SUCCESS, 2, 1)
        assert {row["pid"]: row["usedGpuMemory"] for row in answer["rows"]} == {
            one.pid: 256 * MIB,
            two.pid: 128 * MIB,
        }
        for row in answer["rows"]:
            assert (
                row.get("gpuInstanceId", 0xFFFFFFFF) == row.get("computeInstanceId", 0xFFFFFFFF) == 0xFFFFFFFF
            )


def test_processes_of_other_tenants_are_not_listed(start: Start, tenant: str) -> None:
    other = start(GPULIMIT_TENANT=f"{tenant}-b", GPULIMIT_MEMORY="1GiB")
    assert other("alloc", MIB) == 0
    client = start(GPULIMIT_MEMORY="1GiB")
    for call in LISTS:
        assert client("processes", call, 8)["rows"] == []
    assert client("alloc", MIB) == 0
    for call in LISTS:
        assert [row["pid"] for row in client("processes", call, 8)["rows"]] == [client.pid]
    assert [row["pid"] for row in other("processes", COMPUTE, 8)["rows"]] == [other.pid]


def test_process_that_only_asks_nvml_is_not_listed(start: Start) -> None:
    one, two = start(GPULIMIT_MEMORY="1GiB"), start(GPULIMIT_MEMORY="1GiB")
    assert one("alloc", MIB) == 0
    assert [row["pid"] for row in two("processes", COMPUTE, 8)["rows"]] == [one.pid]


def test_names_of_other_processes_are_not_found(start: Start, tenant: str) -> None:
    other = start(GPULIMIT_TENANT=f"{tenant}-b", GPULIMIT_MEMORY="1GiB")
    one, two = start(GPULIMIT_MEMORY="1GiB"), start(GPULIMIT_MEMORY="1GiB")
    for client in (other, one, two):
        assert client("alloc", MIB) == 0
    assert one("name", one.pid) == two("name", one.pid) == SUCCESS
    assert one("name", two.pid) == SUCCESS
    assert one("name", other.pid) == one("name", 1) == NOT_FOUND


def test_killed_process_leaves_the_list(start: Start) -> None:
    one, two = start(GPULIMIT_MEMORY="1GiB"), start(GPULIMIT_MEMORY="1GiB")
    assert one("alloc", MIB) == 0
    one.process.kill()
    one.process.wait(timeout=10)
    assert two("processes", COMPUTE, 8)["rows"] == []


NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


@pytest.fixture
def start_inside(limited_env: dict[str, str], start_process: Any) -> Callable[..., Client]:
    """Start a limited client in so many pid namespaces, one inside the other."""
    if shutil.which("unshare") is None:
        pytest.skip("not installed: unshare")
    probe = start_process([*NAMESPACE, "true"], env=limited_env)
    if probe.wait(timeout=10) != 0:
        pytest.skip("pid namespaces cannot be made here")

    def begin(depth: int = 1, **environ: str) -> Client:
        env = limited_env | {"GPULIMIT_SIM_PROFILE": "small"} | environ
        argv = [*(NAMESPACE * depth), sys.executable, PROGRAM]
        return Client(start_process(argv, env=env, stdin=-1))

    return begin


@pytest.mark.parametrize("depth", [1, 2])
def test_a_process_of_an_inner_pid_namespace_is_listed_under_the_reader_s_pids(
    start: Start, start_inside: Start, depth: int
) -> None:
    """As the driver lists them: from outside by the pid there, from inside only what can be seen."""
    inside = start_inside(depth, GPULIMIT_MEMORY="1GiB")
    outside = start(GPULIMIT_MEMORY="1GiB")
    assert inside("alloc", 64 * MIB) == 0
    assert outside("alloc", 32 * MIB) == 0
    assert inside("pid") == 1
    assert [row["pid"] for row in inside("processes", COMPUTE, 8)["rows"]] == [1]
    listed = {row["pid"]: row["usedGpuMemory"] for row in outside("processes", COMPUTE, 8)["rows"]}
    child = innermost(inside.pid)
    assert listed == {outside.pid: 32 * MIB, child: 64 * MIB}
    assert outside("name", child) == SUCCESS
    assert inside("memory")["used"] == outside("memory")["used"] == 96 * MIB


def innermost(pid: int) -> int:
    """Return the last of a line of only children."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def test_utilisation_is_shown_under_the_reader_s_pids(start: Start, start_inside: Start) -> None:
    inside = start_inside(1, GPULIMIT_MEMORY="1GiB")
    outside = start(GPULIMIT_MEMORY="1GiB")
    assert inside("spin", 1500) == 0
    assert outside("samples", 8)["pids"] == [innermost(inside.pid)]
    assert inside("samples", 8)["pids"] == [1]


def test_the_simulated_driver_names_processes_by_the_reader_s_pids(
    sim_env: dict[str, str], start_process: Any, start_inside: Start
) -> None:
    """Driver 580 in a pid namespace: those that can be seen there, by the pids they have there."""
    raw = {"LD_PRELOAD": ""}
    inside = start_inside(1, **raw)
    env = sim_env | {"GPULIMIT_SIM_PROFILE": "small"}
    outside = Client(start_process([sys.executable, PROGRAM], env=env, stdin=-1))
    assert inside("alloc", MIB) == outside("alloc", MIB) == 0
    assert [row["pid"] for row in inside("processes", COMPUTE, 8)["rows"]] == [1]
    both = {row["pid"] for row in outside("processes", COMPUTE, 8)["rows"]}
    assert both == {outside.pid, innermost(inside.pid)}


@pytest.fixture
def lying(compile_c: Any, built: Any, tmp_path: Path, start: Start) -> Client:
    """Start a client whose NVML says that it has written more rows than there was room for."""
    sources = Path(__file__).resolve().parent.parent / "c"
    flags = ("-shared", "-fPIC", "-D_GNU_SOURCE", f"-I{sources.parent.parent / 'csrc'}", "-ldl")
    library = compile_c(
        sources / "lying" / "nvml.c", *flags, "-Wl,-soname,libnvidia-ml.so.1", name="lying.so"
    )
    folder = tmp_path / "lying"
    folder.mkdir()
    shutil.copy(library, folder / "libnvidia-ml.so.1")
    return start(
        GPULIMIT_MEMORY="1GiB",
        LD_LIBRARY_PATH=f"{folder}:{built.sim}",
        REAL_NVML=str(built.sim / "libnvidia-ml.so.1"),
    )


@pytest.mark.parametrize("room", [1, 8, 200])
def test_a_number_of_rows_beyond_the_room_is_not_believed(lying: Client, room: int) -> None:
    """Nothing is read or written behind the caller's rows, whatever the driver says of their number."""
    answer = lying("samples", room)
    assert (answer["canaries"], answer["pids"]) == (1, [])
    answer = lying("processes", "nvmlDeviceGetGraphicsRunningProcesses_v3", room)
    assert answer["canaries"] == 1
    assert answer["count"] <= room


def test_the_number_of_other_tenants_rows_is_not_told(start: Start, tenant: str) -> None:
    other = start(GPULIMIT_TENANT=f"{tenant}-b", GPULIMIT_MEMORY="1GiB")
    assert other("spin", 1500) == 0
    client = start(GPULIMIT_MEMORY="1GiB")
    for infos in (True, False):
        assert client("samples", 0, infos)["count"] == 0
    assert other("samples", 0)["count"] == 1
    for call in LISTS:
        answer = client("processes", call, 3, 0, False)
        assert (answer["result"], answer["count"]) == (INVALID_ARGUMENT, 3)


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetRunningProcessDetailList", "nvmlDeviceGetProcessesUtilizationInfo"]
)
def test_rows_of_an_unknown_version_are_refused_inside_a_tenant(start: Start, call: str) -> None:
    assert start(GPULIMIT_MEMORY="1GiB")("versioned", call, 0x07000040) == VERSION_MISMATCH


def test_graphics_and_mps_lists_are_empty(start: Start) -> None:
    client = start(GPULIMIT_MEMORY="1GiB")
    assert client("alloc", MIB) == 0
    for kind in ("Graphics", "MPSCompute"):
        for version in ("", "_v2", "_v3"):
            answer = client("processes", f"nvmlDeviceGet{kind}RunningProcesses{version}", 4)
            assert (answer["result"], answer["rows"]) == (SUCCESS, [])


def test_utilization_of_others_is_not_found(start: Start) -> None:
    assert start(GPULIMIT_MEMORY="1GiB")("utilization") == {"nvml_error": NOT_FOUND}


def test_each_card_has_its_own_quota_whatever_order_cuda_has(start: Start) -> None:
    # NVML's order is by PCI bus, CUDA's by speed: CUDA's device 0 is NVML's 1.
    client = start(
        GPULIMIT_SIM_PROFILE="mixed",
        GPULIMIT_MEMORY="0=4GiB,GPU-1f0b22bb=8GiB,*=12GiB",
        CUDA_DEVICE_ORDER="FASTEST_FIRST",
    )
    assert [client("memory", index)["total"] for index in range(3)] == [4 * GIB, 8 * GIB, 12 * GIB]
    assert client("cuda_info")[1] == 8 * GIB
    assert client("alloc", 64 * MIB) == 0
    used = [client("memory", index)["used"] for index in range(3)]
    assert used[0] == used[2] == 0
    assert used[1] >= 64 * MIB
    assert client("processes", COMPUTE, 4, 0)["rows"] == []
    assert [row["pid"] for row in client("processes", COMPUTE, 4, 1)["rows"]] == [client.pid]


def test_card_that_no_rule_names_is_empty(start: Start) -> None:
    client = start(GPULIMIT_SIM_PROFILE="mixed", GPULIMIT_MEMORY="0=4GiB")
    assert client("memory", 1) == {"total": 0, "free": 0, "used": 0}
    assert client("memory_v2", 1)["total"] == 0


def test_asking_about_cards_takes_no_room_in_the_segment(start: Start, tenant: str) -> None:
    segment = pytest.importorskip("limiter.segment")
    client = start(GPULIMIT_SIM_PROFILE="mixed", GPULIMIT_MEMORY="4GiB")
    for index in range(3):
        assert client("memory", index)["total"] == 4 * GIB
    assert segment.read(tenant).devices == ()


def test_without_a_quota_everything_is_shown_as_it_is(
    limited_env: dict[str, str], start_process: Any, start: Start
) -> None:
    other = start(GPULIMIT_MEMORY="1GiB")
    assert other("alloc", 256 * MIB) == 0
    env = limited_env | {"GPULIMIT_SIM_PROFILE": "small"}
    del env["GPULIMIT_TENANT"]
    client = Client(start_process([sys.executable, PROGRAM], env=env, stdin=-1))
    assert client("memory") == {"total": 4 * GIB, "free": 4 * GIB - 256 * MIB, "used": 256 * MIB}
    assert [row["pid"] for row in client("processes", COMPUTE, 8)["rows"]] == [other.pid]


def test_unreadable_quota_leaves_nvml_as_it_is_and_refuses_cuda(start: Start) -> None:
    client = start(GPULIMIT_MEMORY="0m")
    assert client("memory")["total"] == 4 * GIB
    with pytest.raises(AssertionError, match='GPULIMIT_MEMORY: "0m" at character 1'):
        client("alloc", MIB)
