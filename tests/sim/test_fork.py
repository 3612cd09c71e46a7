# SPDX-License-Identifier: Apache-2.0
"""Children of every kind: each has its own place under the tenant's one quota, and is counted once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from limiter import segment

from .conftest import LONG, Program, wait_until
from .test_kills import points

MIB = 1 << 20
NOT_INITIALIZED, OUT_OF_MEMORY = 3, 2
QUOTA = {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": "20MiB"}
PYTHON = sys.executable


@pytest.fixture
def ways(
    program: Program, start_process: Any, limited_env: dict[str, str]
) -> Iterator[Callable[..., tuple[Any, Callable[[], tuple[int, int]]]]]:
    """Start fork/ways; return the process and a function that reads one line of it or its children."""
    seen: list[int] = []

    def start(*arguments: str, **environ: str) -> Any:
        process = start_process([program("fork/ways"), *arguments], env=limited_env | QUOTA | environ)

        def line() -> tuple[int, int]:
            first, second = process.stdout.readline().split()
            pid = int(second if first == "child" else first)
            seen.append(pid)
            return pid, 0 if first == "child" else int(second)

        return process, line

    yield start
    for pid in seen:  # daemons are in no group that anybody else would kill
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def living(usage: segment.Usage) -> dict[int, int]:
    """Return bytes by pid."""
    return {p.pid: p.accounts[0].used_bytes for p in usage.processes if p.is_alive and p.accounts}


@pytest.mark.parametrize("way", ["fork", "vfork", "spawn", "clone", "daemon"])
def test_children_of_every_kind_share_the_quota_and_count_once(ways: Any, books: Any, way: str) -> None:
    """Three ask for 8 of 20 MiB."""
    _, line = ways(way, "3")
    answers = [line() for _ in range(3)]
    assert sorted(code for _, code in answers) == [0, 0, OUT_OF_MEMORY]
    held = living(books())
    assert set(held) == {pid for pid, _ in answers}
    assert sorted(held.values()) == [0, 8 * MIB, 8 * MIB]
    assert books().devices[0].used_bytes == 16 * MIB


def test_grandchildren_count_as_well(ways: Any, books: Any) -> None:
    _, line = ways("nested", "2")
    answers = [line() for _ in range(4)]
    assert sorted(code for _, code in answers) == [0, 0, OUT_OF_MEMORY, OUT_OF_MEMORY]
    assert books().devices[0].used_bytes == 16 * MIB


def test_a_daemon_is_held_to_the_quota_after_its_parents_have_gone(ways: Any, books: Any) -> None:
    process, line = ways("daemon", "1")
    pid, code = line()
    assert code == 0
    process.kill()
    process.wait(timeout=10)
    _, other = ways("hold", "16")
    assert other()[1] == OUT_OF_MEMORY
    assert living(books())[pid] == 8 * MIB


def test_after_exec_the_process_begins_anew(ways: Any, books: Any) -> None:
    process, line = ways("exec")
    assert line() == (process.pid, 0)
    assert living(books()) == {process.pid: 8 * MIB}
    assert books().devices[0].used_bytes == 8 * MIB or wait_until(
        lambda: books().devices[0].used_bytes == 16 * MIB
    )  # what it held before exec is given back to the next one who needs it
    _, other = ways("hold", "12")
    assert other()[1] == 0


def test_cuda_in_a_child_of_a_cuda_process_fails_as_ever_and_changes_no_books(ways: Any, books: Any) -> None:
    """As on a real card, whose contexts do not follow a fork."""
    process, _ = ways("used")
    codes = [int(word) for word in process.stdout.readline().split()]
    assert set(codes) == {NOT_INITIALIZED}, codes
    pid, failures = (int(word) for word in process.stdout.readline().split())
    assert failures == 0
    assert living(books()) == {pid: 8 * MIB}
    assert books().devices[0].used_bytes == 8 * MIB


def test_a_child_that_only_forks_is_not_charged_and_does_not_keep_its_parent_s_memory(
    ways: Any, books: Any, card_used: Any
) -> None:
    process, line = ways("only-fork")
    answers = dict([line(), line()])
    child = next(pid for pid in answers if pid != process.pid)
    assert living(books()) == {process.pid: 8 * MIB}
    process.kill()
    process.wait(timeout=10)
    os.kill(child, 0)  # lives
    _, other = ways("hold", "20")
    assert other()[1] == 0
    assert books().devices[0].used_bytes == 20 * MIB == card_used()[0]
    os.kill(child, 0)


@pytest.mark.timeout(300)
def test_forking_while_another_thread_allocates_never_hangs(
    program: Program, run_process: Any, limited_env: dict[str, str]
) -> None:
    children = "20000" if LONG else "2000"
    run_process([program("fork/storm"), children], env=limited_env | QUOTA, timeout=280, expect=0)


WORKER = """
import ctypes, multiprocessing, sys
def take(queue=None):
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    code = code or cuda.cuCtxSetCurrent(context)
    code = code or cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(6 << 20))
    if queue:
        queue.put(code)
        sys.stdin = None
        import time; time.sleep(40)
    return code
if __name__ == "__main__":
    method = sys.argv[1]
    used = method != "fork" and take() == 0
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    workers = [context.Process(target=take, args=(queue,), daemon=True) for _ in range(3)]
    for worker in workers: worker.start()
    print(int(used), *sorted(queue.get() for _ in workers), flush=True)
    import time; time.sleep(40)
"""


@pytest.mark.parametrize(
    ("method", "answers", "held"),
    [("fork", "0 0 0 0", 3), ("spawn", "1 0 0 2", 3), ("forkserver", "1 0 0 2", 3)],
)
def test_workers_of_multiprocessing_share_the_quota(
    start_process: Any,
    limited_env: dict[str, str],
    books: Any,
    tmp_path: Path,
    method: str,
    answers: str,
    held: int,
) -> None:
    """6 MiB each of 20; with spawn and forkserver the parent has its own 6 already."""
    script = tmp_path / "workers.py"
    script.write_text(WORKER)
    process = start_process([PYTHON, script, method], env=limited_env | QUOTA)
    assert process.stdout.readline().strip() == answers
    assert books().devices[0].used_bytes == held * 6 * MIB
    assert sum(1 for n in living(books()).values() if n) == held


@pytest.fixture
def in_own_cgroup(start_process: Any, sim_env: dict[str, str]) -> list[str]:
    """Prefix that puts a program into a cgroup namespace of the test's own: a default tenant of its own.

    Where that is not permitted, the session's default tenant has to do.
    """
    holder = start_process(["unshare", "--cgroup", "sleep", "60"], env=sim_env)
    own = Path("/proc/self/ns/cgroup").readlink()
    for _ in range(100):
        time.sleep(0.01)
        if holder.poll() is None and Path(f"/proc/{holder.pid}/ns/cgroup").readlink() != own:
            return ["nsenter", "--cgroup", "-t", str(holder.pid), "--"]
    return []


def test_a_cleaned_environment_is_no_way_out_of_the_default_tenant(
    program: Program, start_process: Any, limited_env: dict[str, str], in_own_cgroup: list[str]
) -> None:
    """The preload alone is kept; the quota is the one that the session's other processes live under."""
    binary = program("fork/ways")
    keep = ("LD_PRELOAD", "LD_LIBRARY_PATH", "GPULIMIT_SIM_STATE", "GPULIMIT_SIM_PROFILE")
    env = {k: v for k, v in limited_env.items() if k != "GPULIMIT_TENANT"} | QUOTA
    clean = {k: v for k, v in env.items() if k in keep} | {"PATH": os.environ["PATH"]}
    before = set(segment.tenants())
    first = start_process([*in_own_cgroup, binary, "hold", "8"], env=env)
    created: set[str] = set()
    try:
        assert first.stdout.readline().split()[1] == "0"
        created = {t for t in segment.tenants() if t.startswith(f"auto-{os.geteuid()}-")} - before
        others = [start_process([*in_own_cgroup, binary, "hold", "8"], env=clean) for _ in range(2)]
        codes = sorted(p.stdout.readline().split()[1] for p in others)
        assert codes == ["0", str(OUT_OF_MEMORY)]
        if in_own_cgroup:
            (name,) = created
            assert segment.read(name).devices[0].used_bytes == 16 * MIB
    finally:
        for name in created:
            segment.path_of(name).unlink(missing_ok=True)


@pytest.mark.parametrize("point", points())
def test_a_stopped_process_holds_nobody_up(
    program: Program,
    start_process: Any,
    run_process: Any,
    limited_env: dict[str, str],
    points_library: Path,
    books: Any,
    point: str,
) -> None:
    """SIGSTOP in the middle of a step of the books; the others go on, and so does it once it may."""
    env = limited_env | QUOTA | {"LD_PRELOAD": str(points_library), "GPULIMIT_MEMORY": "80MiB"}
    argv = [program("kills/churn"), "1", "20000", "5"]
    victim = start_process(argv, env=env | {"GPULIMIT_TEST_POINT": f"{point}:50:{signal.SIGSTOP.value}"})
    stopped = wait_until(lambda: next((p for p in children_of(victim.pid) if state_of(p) == "T"), None))
    other = start_process([program("fork/ways"), "hold", "6"], env=env)
    start = time.monotonic()
    assert other.stdout.readline().split()[1] == "0"
    assert time.monotonic() - start < 5
    assert state_of(stopped) == "T"
    assert living(books())[other.pid] == 6 * MIB
    os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: state_of(stopped) != "T")
    wait_until(lambda: books().devices[0].used_bytes == 6 * MIB, 20)


def children_of(pid: int) -> list[int]:
    """Return the pids of its children."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state_of(pid: int) -> str:
    """Return the letter of its state."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
