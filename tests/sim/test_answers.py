# SPDX-License-Identifier: Apache-2.0
"""Odd calls: the answer is the driver's code, and no figure in it is another's than the tenant's."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from . import answers_program
from .conftest import ROOT

PROGRAM = Path(__file__).parent / "answers_program.py"
TABLE = ROOT / "csrc" / "hooks.def"
GIB = 1 << 30
# Of graphs, code and work: their outputs are tried where they are used, and take no figure of memory.
OBJECTS = re.compile(r"^cu(Graph|Stream|Module|Library|Kernel|Launch)")


@pytest.fixture
def answers(run_process: Any, sim_env: dict[str, str], limited_env: dict[str, str]) -> tuple[Any, Any]:
    """Return the driver's own answers, and those under a quota of 1 GiB."""
    argv = [sys.executable, PROGRAM, TABLE]
    small = {"GPULIMIT_SIM_PROFILE": "small"}
    free = run_process(argv, env=sim_env | small, expect=0).stdout
    limited = run_process(argv, env=limited_env | small | {"GPULIMIT_MEMORY": "1GiB"}, expect=0).stdout
    return json.loads(free), json.loads(limited)


def test_the_answer_is_the_driver_s_where_an_output_is_missing_or_the_call_is_invalid_and_too_large(
    answers: tuple[Any, Any],
) -> None:
    free, limited = answers
    assert limited["missing"] == free["missing"]
    assert limited["invalid"] == free["invalid"]
    assert set(free["invalid"].values()) == {1, 801}  # none of them is a matter of memory
    assert len(free["missing"]) > 60


def test_every_hook_with_outputs_is_among_them(answers: tuple[Any, Any]) -> None:
    called = set(answers[0]["called"])
    hooks = answers_program.table(TABLE)
    with_outputs = {name for name, parameters in hooks if any(map(answers_program.is_output, parameters))}
    assert {name for name in with_outputs - called if not OBJECTS.match(name)} == set()


def test_a_figure_that_is_asked_for_alone_is_the_tenant_s(answers: tuple[Any, Any]) -> None:
    free, limited = (one["info"] for one in answers)
    for name in ("cuMemGetInfo_v2", "cuMemGetInfo"):
        assert limited[f"{name} both"] == [0, GIB, GIB]
        assert limited[f"{name} free"] == [0, GIB, 7]
        assert limited[f"{name} total"] == [0, 7, GIB]
        assert limited[f"{name} none"] == [0, 7, 7]
    assert free["cuMemGetInfo_v2 total"] == [0, 7, 4 * GIB]
