# SPDX-License-Identifier: Apache-2.0
"""Every path to device memory, at the edge of the quota: the books, the card and the truth are the same.

The programs are in tests/c/.  They run on a simulated card that counts to the byte (profile `small`), where a
difference of one byte fails, or on one that rounds and charges for contexts as a real one does (`h200`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).resolve().parent.parent / "c"
PATHS = [
    "plain", "old", "pitched", "managed", "arrays", "async", "pools", "vmm", "graphs", "capture",
    "contexts", "green", "no_context", "forked",
]  # fmt: skip
REFUSABLE = [
    "cuMemAlloc_v2", "cuMemAlloc", "cuMemAllocPitch_v2", "cuMemAllocPitch", "cuMemAllocManaged",
    "cuArrayCreate_v2", "cuArray3DCreate_v2", "cuMipmappedArrayCreate", "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync", "cuMemCreate", "cuMemMap", "cuCtxCreate_v2",
    "cuGraphAddMemAllocNode", "cuMemRelease", "cuMemFree_v2", "cuMemFreeAsync", "cuArrayDestroy",
    "cuMemUnmap", "cuCtxDestroy_v2", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRetain",
]  # fmt: skip
OUT_OF_MEMORY, UNKNOWN = 2, 999

Run = Callable[..., str]


@pytest.fixture
def run(built: Any, compile_c: Any, run_process: Any, limited_env: dict[str, str]) -> Run:
    """Run a program of tests/c/ under the shim; it must end with 0, and says what differed if not."""

    def run_one(program: str, *arguments: str, profile: str, memory: str, **environ: str) -> str:
        header = (PROGRAMS / "books.h").stat().st_mtime_ns
        flags = [
            f"-DSTAMP={header}",
            f"-I{PROGRAMS}",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-L{built.sim}",
        ]
        binary = compile_c(
            PROGRAMS / f"{program}.c", *flags, "-lcuda", "-lnvidia-ml", "-lpthread", name=program
        )
        env = limited_env | {"GPULIMIT_SIM_PROFILE": profile, "GPULIMIT_MEMORY": memory} | environ
        return str(run_process([binary, *arguments], env=env, expect=0).stdout)

    return run_one


@pytest.mark.parametrize("path", PATHS)
def test_books_equal_the_card_on_every_path_at_the_edge_of_the_quota(run: Run, path: str) -> None:
    run("memory_paths", path, profile="small", memory="64MiB")


@pytest.mark.parametrize("case", ["own_free", "large", "kept", "trimmed", "again", "upload"])
def test_graphs_are_charged_what_their_pool_holds(run: Run, case: str) -> None:
    run("graph_sharing", case, profile="small", memory="200MiB")


@pytest.mark.parametrize("code", [OUT_OF_MEMORY, UNKNOWN])
@pytest.mark.parametrize("call", REFUSABLE)
def test_books_are_as_before_when_the_driver_refuses(run: Run, call: str, code: int) -> None:
    fault = f"{call}:fail={code}:count=1"
    run("memory_faults", call, str(code), profile="small", memory="64MiB", GPULIMIT_SIM_FAULTS=fault)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("memory", ["64MiB", "24MiB"])
def test_threads_that_keep_hitting_the_quota_never_pass_it_and_leave_nothing(
    run: Run, memory: str, seed: int
) -> None:
    run("memory_churn", "4", "2000", str(seed), profile="small", memory=memory)


@pytest.mark.parametrize(
    "call", ["cuMemPoolGetAttribute", "cuMemPoolTrimTo", "cuDeviceGetGraphMemAttribute", "cuStreamGetCtx"]
)
def test_a_failing_question_after_an_allocation_loses_nothing(run: Run, call: str) -> None:
    fault = f"{call}:fail=999:after=2:count=5"
    run("memory_churn", "2", "500", "3", profile="small", memory="64MiB", GPULIMIT_SIM_FAULTS=fault)


@pytest.mark.parametrize(
    ("case", "memory"),
    [("too_small", "100MiB"), ("second_context", "700MiB"), ("rounding", "1GiB"), ("pool_step", "1GiB")],
)
def test_what_nobody_asked_for_counts_against_the_quota(run: Run, case: str, memory: str) -> None:
    run("memory_overhead", case, profile="h200", memory=memory)


def test_contexts_are_charged_where_nvml_is_not_there(run: Run) -> None:
    run(
        "memory_overhead",
        "too_small",
        profile="h200",
        memory="100MiB",
        GPULIMIT_SIM_FAULTS="nvmlInit_v2:fail=12",
    )
