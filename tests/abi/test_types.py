# SPDX-License-Identifier: Apache-2.0
"""csrc/abi.h against NVIDIA's headers: sizes, offsets and values, as the compiler sees them on both sides."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

CSRC = Path(__file__).resolve().parent.parent.parent / "csrc"
ABI = (CSRC / "abi.h").read_text()

# Enumerations that pass through as int, and handles: only their size matters.
SCALARS = re.findall(
    r"^typedef (?:int|unsigned int|unsigned long long|uint64_t|struct \w+ \*) ?(\w+);", ABI, re.MULTILINE
)
# Structures that their header calls otherwise.
THEIRS = {
    "nvmlProcessDetailList_t": "nvmlProcessDetailList_v1_t",
    "nvmlProcessesUtilizationInfo_t": "nvmlProcessesUtilizationInfo_v1_t",
}
# Fields likewise.
THEIR_FIELDS = {"child.graph": "graph.graph", "child.ownership": "graph.ownership"}


def structures() -> dict[str, list[str]]:
    """Return the field names of each structure of abi.h that is written out, nested ones as "outer.inner"."""
    found = {}
    for body, name in re.findall(
        r"^typedef (?:struct|union) \{\n(.*?)^\} (\w+);", ABI, re.MULTILINE | re.DOTALL
    ):
        found[name] = fields(re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL))
    return found


def fields(body: str) -> list[str]:
    """Return the names declared in a structure's body."""
    names: list[str] = []
    nested = re.compile(r"(?:struct|union) \{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}\s*(\w*);")
    for inner, name in nested.findall(body):
        names += [f"{name}.{one}" if name else one for one in fields(inner)]
    for line in nested.sub("", body).split(";"):
        declared = re.sub(r"\[.*?\]", "", line).strip()
        if declared:
            first, *rest = declared.split(",")
            names += [re.findall(r"\w+", first)[-1], *(re.findall(r"\w+", one)[-1] for one in rest)]
    return names


def constants() -> list[str]:
    """Return the names that abi.h gives to numbers."""
    bodies = re.findall(r"^enum \{(.*?)\};", ABI, re.MULTILINE | re.DOTALL)
    return [name for body in bodies for name in re.findall(r"(\w+) = ", body)]


def ask(tmp_path: Path, include: str, questions: dict[str, str]) -> dict[str, int]:
    """Return what the compiler makes of some constant expressions after an include."""
    lines = "".join(
        f'\tprintf("%s %lld\\n", "{key}", (long long)({what}));\n' for key, what in questions.items()
    )
    source = tmp_path / f"ask-{abs(hash(include))}.c"
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n{include}\nint main(void)\n{{\n{lines}\treturn 0;\n}}\n"
    )
    binary = source.with_suffix("")
    done = subprocess.run(
        ["gcc", "-D__CUDA_API_VERSION_INTERNAL", "-o", str(binary), str(source)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[:3000]
    out = subprocess.run([str(binary)], capture_output=True, text=True, timeout=10, check=True).stdout
    return {key: int(value) for key, value in (line.rsplit(" ", 1) for line in out.splitlines())}


def compare(tmp_path: Path, header: Any, questions: dict[str, tuple[str, str]]) -> None:
    """Ask both sides the same, ours and theirs, and compare the answers."""
    ours = ask(tmp_path, f'#include "{CSRC / "abi.h"}"', {key: pair[0] for key, pair in questions.items()})
    theirs = ask(tmp_path, f'#include "{header.path}"', {key: pair[1] for key, pair in questions.items()})
    assert ours == theirs


@pytest.fixture(params=["cuda_12", "cuda_13", "nvml"])
def header(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def belongs(name: str, header: Any) -> bool:
    return name.lower().startswith("nvml") == header.is_nvml


def test_sizes_of_scalars_and_handles(tmp_path: Path, header: Any) -> None:
    questions = {
        n: (f"sizeof({n})", f"sizeof({n})") for n in SCALARS if belongs(n, header) and n in header.words
    }
    # Present everywhere since the first versions: the rest may be newer than the header.
    assert {"CUresult", "CUcontext"} <= set(questions) or {"nvmlReturn_t", "nvmlDevice_t"} <= set(questions)
    compare(tmp_path, header, questions)


def test_sizes_and_offsets_of_structures(tmp_path: Path, header: Any) -> None:
    questions = {}
    for name, names in structures().items():
        theirs = THEIRS.get(name, name)
        if not belongs(name, header) or theirs not in header.words:
            continue
        questions[name] = (f"sizeof({name})", f"sizeof({theirs})")
        # Newer headers name bytes of a reserved tail.
        for field in (f for f in names if not f.startswith("reserved")):
            their = THEIR_FIELDS.get(field, field)
            questions[f"{name}.{field}"] = (
                f"offsetof({name}, {field}) * 1000 + sizeof((({name} *)0)->{field})",
                f"offsetof({theirs}, {their}) * 1000 + sizeof((({theirs} *)0)->{their})",
            )
    assert len(questions) > 20
    compare(tmp_path, header, questions)


def test_values_of_constants(tmp_path: Path, header: Any) -> None:
    names = [n for n in constants() if belongs(n, header) and n in header.words]
    assert len(names) > 10
    compare(tmp_path, header, {n: (n, n) for n in names})


def test_every_constant_is_of_a_header(cuda_12: Any, cuda_13: Any, nvml: Any) -> None:
    assert set(constants()) - cuda_12.words - cuda_13.words - nvml.words == set()


def test_struct_versions_of_nvml(tmp_path: Path, nvml: Any) -> None:
    ours = ask(tmp_path, f'#include "{CSRC / "abi.h"}"', {"v2": "NVML_MEMORY_V2"})
    assert ours == ask(tmp_path, f'#include "{nvml.path}"', {"v2": "nvmlMemory_v2"})
