# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests on a real card.  Where there is none, they are skipped.

Programs (programs/) run whole, as users' programs do, and print one line of JSON per check; a test runs one
and asks for all checks to have passed.  An observer outside reads meanwhile what the card holds for it.

`GPULIMIT_TEST_GPU=sim` rehearses what needs no framework on the simulated driver.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pytest

from limiter.doctor.driver import probe

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"
QUOTA = 4 << 30
SLACK = 64 << 20
"""What the driver takes on its own (code at a kernel's first launch) cannot be refused beforehand."""
PROGRAM_TIMEOUT_S = 60.0
REHEARSAL = os.environ.get("GPULIMIT_TEST_GPU") == "sim"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: measures time, so nothing else may run beside it")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    status: int
    checks: list[dict[str, Any]]
    tried: int | None
    """Number of checks; None: the program did not come to its end."""
    stderr: str
    peak_bytes: int | None
    """The most that the card held for the program and its children; None: not to be seen from here."""

    def verify(self) -> None:
        """Fail unless the program ended well and all of its checks passed."""
        failed = [f"{c['check']}\n{c['error']}" for c in self.checks if not c["ok"]]
        if failed or self.status != 0 or self.tried != len(self.checks):
            passed = ", ".join(c["check"] for c in self.checks if c["ok"]) or "none"
            heading = f"status {self.status}, {len(failed)} checks failed; passed: {passed}"
            pytest.fail("\n".join([heading, *failed, "--- stderr", self.stderr[-4000:]]), pytrace=False)

    def verify_under_quota(self) -> None:
        """The same, and nothing was printed, and the card never held more than the quota."""
        self.verify()
        assert "gpulimit" not in self.stderr
        if self.peak_bytes is not None:
            assert QUOTA // 2 < self.peak_bytes <= QUOTA + SLACK


class RunProgram(Protocol):
    """Type of the `run_program` fixture."""

    def __call__(
        self,
        name: str,
        *arguments: str,
        env: Mapping[str, str],
        needs: tuple[str, ...] = (),
        timeout: float = PROGRAM_TIMEOUT_S,
    ) -> Outcome: ...


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Write a figure into the test's report (pytest's own fixture warns for most kinds)."""
    return lambda name, figure: request.node.user_properties.append((name, figure))


@pytest.fixture(scope="session")
def real_gpu() -> None:
    if REHEARSAL:
        return
    answer = probe("driver", {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    if answer.get("simulated", True) or not answer["gpus"]:
        pytest.skip("no real GPU")


def environ() -> dict[str, str]:
    """Return this process's environment without a quota: where the driver and CUDA lie must stay in it."""
    limits = ("GPULIMIT_", "CUDA_DEVICE_", "TENSOR_FUSION_")
    return {k: v for k, v in os.environ.items() if not k.startswith(limits) and k != "LD_PRELOAD"}


@pytest.fixture
def card_env(
    real_gpu: None, sim_env: dict[str, str], tenant: str, built: Any, tmp_path: Path
) -> dict[str, str]:
    """Environment of a program on the first card, not limited."""
    here = {"GPULIMIT_TENANT": tenant, "GPULIMIT_LIB_DIR": str(built.lib)}
    return (sim_env if REHEARSAL else environ() | here) | {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
    }


@pytest.fixture
def quota_env(card_env: dict[str, str], built: Any) -> dict[str, str]:
    """`card_env` under a memory quota of QUOTA bytes."""
    return card_env | {
        "LD_PRELOAD": str(built.library),
        "GPULIMIT_MEMORY": str(QUOTA),
        "QUOTA_BYTES": str(QUOTA),
    }


@contextlib.contextmanager
def observed(group: int, env: Mapping[str, str]) -> Iterator[list[int]]:
    """Watch a process group from outside; the list then holds its peak, unless nothing could be seen."""
    peak: list[int] = []
    outside = {k: v for k, v in env.items() if k not in ("LD_PRELOAD", "GPULIMIT_MEMORY", "GPULIMIT_TENANT")}
    watch = subprocess.Popen(
        [sys.executable, PROGRAMS / "watch.py", str(group)],
        env=outside,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield peak
        out, _ = watch.communicate(timeout=20)
        seen = json.loads(out) if watch.returncode == 0 else {"readings": 0}
        if seen["readings"]:
            peak.append(seen["peak_bytes"])
    finally:
        watch.kill()
        watch.communicate()


def read(process: subprocess.Popen[str], timeout: float) -> tuple[str, str]:
    """Return the output of a program, ended if it takes too long."""
    try:
        return process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=20)
        return out, f"{err}\nended after {timeout} s"


@pytest.fixture
def run_program(start_process: Any, note: Any) -> RunProgram:
    """Run a program of programs/ to its end, watched; its figures go into the test's report."""

    def run(
        name: str, *arguments: str, env: Mapping[str, str], needs: tuple[str, ...] = (), timeout: float = 120
    ) -> Outcome:
        missing = [m for m in needs if importlib.util.find_spec(m) is None]
        if missing:
            pytest.skip(f"not installed: {', '.join(missing)}")
        process = start_process([sys.executable, PROGRAMS / name, *arguments], env=env)
        with observed(process.pid, env) as peak:
            out, err = read(process, timeout)
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        reason = next((line["skip"] for line in lines if "skip" in line), None)
        if reason:
            pytest.skip(reason)
        outcome = Outcome(
            status=process.returncode,
            checks=[line for line in lines if "check" in line],
            tried=next((line["tried"] for line in lines if "tried" in line), None),
            stderr=err,
            peak_bytes=peak[0] if peak else None,
        )
        for check in outcome.checks:
            note(check["check"], json.dumps(check["figures"] | {"seconds": check["seconds"]}))
        if outcome.peak_bytes is not None:
            note("peak_mib", outcome.peak_bytes >> 20)
        return outcome

    return run
