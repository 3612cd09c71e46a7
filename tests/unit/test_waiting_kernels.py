# SPDX-License-Identifier: Apache-2.0
"""PTX of the kernels that wait for each other."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from limiter.workload.waiting import AWAIT, BARRIER, PTX, SET

from ..conftest import needs_program


def test_the_module_has_its_kernels_with_64_bit_parameters() -> None:
    assert PTX.startswith(b".version 6.0\n.target sm_70\n"), "memory order between cards begins there"
    parameters = {name: text.split(b",") for name, text in re.findall(rb"entry (\w+)\(([^)]*)\)", PTX)}
    assert {name: len(found) for name, found in parameters.items()} == {BARRIER: 3, AWAIT: 4, SET: 2}
    assert all(b".param .u64 " in parameter for found in parameters.values() for parameter in found)


@needs_program("ptxas")
@pytest.mark.parametrize("card", ["sm_80", "sm_90"])
def test_an_assembler_takes_it(tmp_path: Path, card: str) -> None:
    source = tmp_path / "waiting.ptx"
    source.write_bytes(PTX)
    ptxas = shutil.which("ptxas") or "ptxas"
    done = subprocess.run(
        [ptxas, f"-arch={card}", source, "-o", tmp_path / "out"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
