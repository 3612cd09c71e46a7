# SPDX-License-Identifier: Apache-2.0
"""What the doctor makes of what its probes found."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from limiter.commands.doctor import describe
from limiter.doctor import driver, machine
from limiter.doctor.check import fail, ok

GOOD = {"total_bytes": driver.QUOTA_BYTES, "small": "", "large": "CUDA_ERROR_OUT_OF_MEMORY"}


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, "ok"),
        ({"total_bytes": 80 << 30}, "fail"),
        ({"small": "CUDA_ERROR_OUT_OF_MEMORY"}, "fail"),
        ({"large": ""}, "fail"),
        ({"context": "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2)"}, "warn"),
        ({"error": "no answer within 30 s"}, "fail"),
    ],
)
def test_a_quota_must_be_told_given_and_kept(change: dict[str, Any], level: str) -> None:
    assert driver.judge(GOOD | change).level == level


def test_a_call_that_escapes_is_named() -> None:
    check = driver.hooks({"hooks": 3, "present": 3, "asked": 5, "escaped": ["cuMemAlloc_v2"], "missed": []})
    assert check.level == "fail"
    assert "cuMemAlloc_v2" in check.text


def test_calls_that_the_driver_lacks_are_no_fault() -> None:
    check = driver.hooks({"hooks": 9, "present": 3, "asked": 5, "escaped": [], "missed": []})
    assert check.level == "ok"


def test_a_machine_without_driver_is_told_what_to_do() -> None:
    (check,) = driver.driver({"error": "no CUDA driver"})
    assert check.level == "fail"
    assert "--sim" in check.advice


def test_a_probe_that_crashes_or_hangs_is_an_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(script))
    script.write_text("#!/bin/sh\necho broken >&2\nkill -SEGV $$\n")
    script.chmod(0o755)
    assert "status -11: broken" in driver.probe("driver", os.environ)["error"]
    monkeypatch.setattr(driver, "PROBE_TIMEOUT_S", 0.2)
    script.write_text("#!/bin/sh\nexec sleep 5\n")
    assert "no answer" in driver.probe("driver", os.environ)["error"]


def test_a_library_that_does_not_load_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libgpulimit.so").write_text("not a library")
    monkeypatch.setenv("GPULIMIT_LIB_DIR", str(tmp_path))
    check = machine.library()
    assert check.level == "fail"
    assert "does not load" in check.text


def test_another_preloaded_library_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/lib/libgpulimit.so:/lib/other.so")
    assert machine.preloading().level == "warn"
    monkeypatch.setenv("LD_PRELOAD", "/lib/libgpulimit.so")
    assert machine.preloading().level == "ok"


def test_checks_are_lines_with_advice_below() -> None:
    assert describe(ok("a", "fine"), colour=False) == "ok    a: fine"
    assert describe(fail("a", "bad", "mend it"), colour=False) == "fail  a: bad\n      -> mend it"
