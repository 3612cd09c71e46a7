# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's headers, and the parsers that compare our tables with them.

The headers come from NVIDIA's packages on the package index, are kept under build/headers/ and are never part
of the product, whose build needs none of them. Where they cannot be had, these tests are skipped, loudly.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CSRC = ROOT / "csrc"
STORE = ROOT / "build" / "headers"
CUDA_12 = "nvidia-cuda-runtime-cu12==12.9.79"
CUDA_13 = "nvidia-cuda-runtime==13.5.37"
NVML = "nvidia-nvml-dev==13.5.37"

ROW = re.compile(r"^(CU_HOOK|NVML_HOOK|CU_CALL|NVML_CALL)\((\w+),", re.MULTILINE)
PROTOTYPE = re.compile(r"\b(?:CUresult|nvmlReturn_t)\s+((?:cu|nvml)[A-Z]\w*)\s*\(([^;]*?)\)\s*;")
# Names that newer headers give to the same type.
SAME_TYPE = {
    "CUdevice_v1": "CUdevice",
    "CUdeviceptr_v2": "CUdeviceptr",
    "nvmlProcessInfo_t": "nvmlProcessInfo_v2_t",
    "nvmlProcessDetailList_v1_t": "nvmlProcessDetailList_t",
    "nvmlProcessesUtilizationInfo_v1_t": "nvmlProcessesUtilizationInfo_t",
}


@dataclasses.dataclass(frozen=True)
class Header:
    """One of NVIDIA's headers."""

    name: str
    path: Path

    @property
    def is_nvml(self) -> bool:
        return self.path.name == "nvml.h"

    @cached_property
    def text(self) -> str:
        """What the compiler sees, with every version of every call."""
        return preprocessed(
            f'#include "{self.path}"\n', "-D__CUDA_API_VERSION_INTERNAL", "-DNVML_NO_UNVERSIONED_FUNC_DEFS"
        )

    @cached_property
    def functions(self) -> dict[str, list[str]]:
        """Parameters by function."""
        found = {name: parameters(inner) for name, inner in PROTOTYPE.findall(self.text)}
        return found

    @cached_property
    def words(self) -> set[str]:
        """Everything that has a name, macros included."""
        return set(re.findall(r"\w+", self.path.read_text(errors="replace")))


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of csrc/hooks.def."""

    kind: str
    name: str
    parameters: list[str]

    @property
    def is_nvml(self) -> bool:
        return self.kind.startswith("NVML")

    @property
    def is_hook(self) -> bool:
        return self.kind.endswith("HOOK")


def preprocessed(text: str, *flags: str) -> str:
    """Return C after the preprocessor, attributes removed."""
    done = subprocess.run(
        ["gcc", "-E", "-P", *flags, "-x", "c", "-"],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return re.sub(r"__attribute__\(\([^)]*\)\)", "", done.stdout)


def parameters(inner: str) -> list[str]:
    """Return the types of a parameter list, each in one spelling, without names."""
    inner = re.sub(r"\s+", " ", inner).strip()
    return [] if inner in ("", "void") else [type_of(one) for one in split(inner)]


def split(inner: str) -> Iterator[str]:
    """Split at the commas outside parentheses."""
    depth, start = 0, 0
    for at, char in enumerate(inner):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            yield inner[start:at]
            start = at + 1
    yield inner[start:]


def type_of(parameter: str) -> str:
    """Return "base**" for one parameter; const is left out, arrays are pointers."""
    if "(" in parameter:
        raise ValueError(f"a function type: {parameter}")
    depth = parameter.count("*") + parameter.count("[")
    words = [
        w
        for w in re.findall(r"\w+", re.sub(r"\[.*?\]", "", parameter))
        if w not in ("const", "struct", "enum")
    ]
    builtin = {"unsigned", "int", "long", "char", "short", "float", "double", "void", "signed"}
    base = [w for w in words if w in builtin]
    if not base or words[0] not in builtin:
        base = words[:1]
    name = " ".join(base)
    return SAME_TYPE.get(name, name) + "*" * depth


def fetch(package: str) -> Path:
    """Return the folder with a package's headers, downloaded once."""
    folder = STORE / re.sub(r"\W+", "-", package)
    if folder.exists():
        return folder
    STORE.mkdir(parents=True, exist_ok=True)
    stem = package.replace("-", "_").replace("==", "-")
    wheels = list(STORE.glob(f"{stem}-*.whl"))
    if not wheels:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(STORE), package],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        wheels = list(STORE.glob(f"{stem}-*.whl"))
        if not wheels:
            pytest.skip(f"THE ABI IS NOT CHECKED: no {package}: {done.stderr.strip()[-200:]}")
    unpacked = folder.with_suffix(".part")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(unpacked, [name for name in wheel.namelist() if name.endswith(".h")])
    unpacked.rename(folder)
    return folder


def header(package: str, name: str) -> Header:
    """Return one header of a package."""
    (path,) = fetch(package).rglob(name)
    return Header(f"{name} of {package}", path)


@pytest.fixture(scope="session")
def cuda_12() -> Header:
    return header(CUDA_12, "cuda.h")


@pytest.fixture(scope="session")
def cuda_13() -> Header:
    return header(CUDA_13, "cuda.h")


@pytest.fixture(scope="session")
def nvml() -> Header:
    return header(NVML, "nvml.h")


@pytest.fixture(scope="session")
def rows() -> list[Row]:
    """The hook table, as the preprocessor expands it."""
    hooks = "".join(
        f"#define {k}(name, class, params, args) @{k} name params ;\n" for k in ("CU_HOOK", "NVML_HOOK")
    )
    calls = "".join(f"#define {k}(name, params) @{k} name params ;\n" for k in ("CU_CALL", "NVML_CALL"))
    text = preprocessed(f'{hooks}{calls}#include "{CSRC / "hooks.def"}"\n')
    found = re.findall(r"@(\w+)\s+(\w+)\s*\(([^;]*?)\)\s*;", text)
    return [Row(kind, name, parameters(inner)) for kind, name, inner in found]
