# SPDX-License-Identifier: Apache-2.0
"""The table of what a process holds (csrc/memory/blocks.c)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("sanitizer", ["", "address,undefined", "thread"])
def test_the_table_holds_what_was_put_whatever_the_order(
    compile_c: Any, run_process: Any, sanitizer: str
) -> None:
    stamp = (ROOT / "csrc" / "memory" / "blocks.c").stat().st_mtime_ns
    flags = [f"-fsanitize={sanitizer}"] if sanitizer else []
    binary = compile_c(
        ROOT / "tests" / "c" / "blocks.c",
        f"-DSTAMP={stamp}",
        "-D_GNU_SOURCE",
        *flags,
        "-lpthread",
        name="blocks",
    )
    run_process([binary], env={}, timeout=120, expect=0)
