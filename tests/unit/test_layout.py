# SPDX-License-Identifier: Apache-2.0
"""The shared-memory layout stays where it is: as C sees it, as Python sees it, as tests/golden/ remembers it.

A change of place or meaning needs a new GL_LAYOUT_VERSION. With GPULIMIT_RENEW_GOLDEN=1 this test writes the
golden file anew; review it as code.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from limiter._native import ffi, lib

TESTS = Path(__file__).resolve().parent.parent
GOLDEN = TESTS / "golden" / "layout.txt"
HEADER = TESTS.parent / "csrc" / "layout.h"
STRUCTURES = (
    "gl_header",
    "gl_device",
    "gl_account",
    "gl_slot",
    "gl_cover",
    "gl_share",
    "gl_gang",
    "gl_usage",
    "gl_policy_device",
    "gl_policy",
    "gl_state_gpu",
    "gl_state",
)
CONSTANTS = (
    "GL_USAGE_MAGIC",
    "GL_POLICY_MAGIC",
    "GL_STATE_MAGIC",
    "GL_MAX_HEARTBEAT_AGE_NS",
    "GL_LAYOUT_VERSION",
    "GL_MAX_DEVICES",
    "GL_MAX_NODE_DEVICES",
    "GL_MAX_SLOTS",
    "GL_MAX_SHARES",
    "GL_TENANT_NAME_BYTES",
    *("GL_KERNEL", "GL_COOPERATIVE", "GL_GRAPH", "GL_CAPTURED", "GL_LAUNCH_KINDS"),
    *("GL_MEM_PLAIN", "GL_MEM_MANAGED", "GL_MEM_ARRAY", "GL_MEM_POOL", "GL_MEM_VMM", "GL_MEM_GRAPH"),
    *("GL_MEM_OVERHEAD", "GL_MEM_KINDS"),
    *("GL_GANG_AUTO", "GL_GANG_OFF", "GL_GANG_NAMED"),
    *("GL_PRIORITY_LOW", "GL_PRIORITY_NORMAL", "GL_PRIORITY_HIGH"),
)


def fields(structure: str) -> list[str]:
    return [name for name, _ in ffi.typeof(f"struct {structure}").fields]


def as_python_sees_it() -> list[str]:
    """Return one line for each constant, structure and field: value, or size, or offset and size."""
    lines = [f"{name} {getattr(lib, name)}" for name in CONSTANTS]
    for structure in STRUCTURES:
        kind = ffi.typeof(f"struct {structure}")
        lines.append(f"{structure} {ffi.sizeof(kind)}")
        lines += [
            f"{structure}.{name} {field.offset} {ffi.sizeof(field.type)}" for name, field in kind.fields
        ]
    return lines


def test_layout_is_the_golden_one() -> None:
    lines = as_python_sees_it()
    if os.environ.get("GPULIMIT_RENEW_GOLDEN"):
        GOLDEN.write_text("\n".join(lines) + "\n")
    assert lines == GOLDEN.read_text().splitlines()


def test_c_sees_what_python_sees(tmp_path: Path) -> None:
    asked = [f'printf("{name} %lld\\n", (long long){name});' for name in CONSTANTS]
    for structure in STRUCTURES:
        asked.append(f'printf("{structure} %zu\\n", sizeof(struct {structure}));')
        asked += [
            f'printf("{structure}.{name} %zu %zu\\n", offsetof(struct {structure}, {name}), '
            f"sizeof(((struct {structure} *)0)->{name}));"
            for name in fields(structure)
        ]
    body = "\n\t".join(asked)
    source = tmp_path / "layout.c"
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{HEADER}"\nint main(void)\n{{\n\t{body}\n}}\n'
    )
    program = source.with_suffix("")
    subprocess.run(["gcc", "-o", program, source], check=True, timeout=60)
    out = subprocess.run([program], check=True, timeout=10, capture_output=True, text=True).stdout
    assert out.splitlines() == as_python_sees_it()


def test_no_field_has_padding_before_it() -> None:
    for structure in STRUCTURES:
        kind = ffi.typeof(f"struct {structure}")
        end = 0
        for name, field in kind.fields:
            assert field.offset == end, f"{structure}.{name}"
            end += ffi.sizeof(field.type)
        assert end == ffi.sizeof(kind), structure
