# SPDX-License-Identifier: Apache-2.0
"""A program for test_answers.py: odd calls, and the driver's answers to them as JSON.

It calls every function of the hook table that has outputs, with each of them missing in turn, then makes
calls that are both invalid and too large.  It knows nothing of quotas; it is run with the library and
without, and the answers must be the same.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

cuda: Any = None
nvml: Any = None
MIB, CANARY = 1 << 20, 0xA5
# Called with what others made, or with nothing at all, these take a driver (the simulated one, too) down.
NEEDS_OBJECTS = re.compile(r"Graph(?!ics)|Launch|Module|Library|Kernel|FuncLoad|Capture|Recapture")


class Prop(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("type", "handles", "location", "id")),
        ("security", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Pool(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("type", "handles", "location", "id")),
        ("security", ctypes.c_void_p),
        ("most", ctypes.c_size_t),
        ("reserved", ctypes.c_ubyte * 56),
    )


class Array(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR."""

    _fields_ = (
        ("w", ctypes.c_size_t),
        ("h", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    )


class Array3D(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("w", "h", "d")),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


def start() -> Any:
    global cuda, nvml
    cuda, nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
    context = ctypes.c_void_p()
    for result in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)):
        assert result == 0, result
    assert cuda.cuCtxSetCurrent(context) == 0
    return context


def table(path: Path) -> list[tuple[str, list[str]]]:
    """Return each hook of the table with its parameters."""
    rows = re.findall(r"^(?:CU|NVML)_HOOK\((\w+), \w+,\s*\((.*?)\),\s*\(", path.read_text(), re.M | re.S)
    return [(name, [p.strip() for p in parameters.split(",")]) for name, parameters in rows]


def is_output(parameter: str) -> bool:
    return (
        "*" in parameter and "const " not in parameter and not re.search(r"^void \*\w|data$|user$", parameter)
    )


def is_same_answer_wanted(name: str, parameters: list[str]) -> bool:
    return any(map(is_output, parameters)) and not NEEDS_OBJECTS.search(name)


def input_of(parameter: str, handle: Any) -> Any:
    """Return something that the call takes."""
    kind, _, name = parameter.rpartition(" ")
    if kind == "nvmlDevice_t":
        return handle
    if "char *" in parameter:
        return b"cuMemAlloc"
    if "DESCRIPTOR" in kind:
        return ctypes.byref(Array3D(16, 16, 0, 0x20, 1) if "3D" in kind else Array(16, 16, 0x20, 1))
    if "CUmemAllocationProp" in kind:
        return ctypes.byref(Prop(1, 0, 1, 0))
    if "CUmemPoolProps" in kind:
        return ctypes.byref(Pool(1, 0, 1, 0))
    sizes = {
        "bytes": MIB,
        "size": 2 * MIB,
        "width": 512,
        "height": 2,
        "element": 4,
        "levels": 1,
        "version": 12000,
    }
    value = sizes.get(name, os.getpid() if name == "pid" else 0)
    value = 1 if name == "flags" and "int flags" in parameter and "Managed" in parameter else value
    return (
        ctypes.c_size_t(value)
        if kind in ("size_t", "cuuint64_t", "unsigned long long")
        else ctypes.c_uint(value)
    )


def call(name: str, parameters: list[str], given: tuple[bool, ...], handle: Any) -> list[Any]:
    """Call with those outputs that are given; return the code and whether each was written."""
    outputs = iter(given)
    rooms: list[Any] = []
    arguments = []
    for parameter in parameters:
        if not is_output(parameter):
            arguments.append(input_of(parameter, handle))
            continue
        if not next(outputs):
            arguments.append(None)
            continue
        room = (ctypes.c_ubyte * 8192)(*([0] * 16 + [CANARY] * 8176))
        rooms.append(room)
        arguments.append(room)
    if name.startswith("cuMemAllocManaged"):
        arguments[-1] = ctypes.c_uint(1)
    library = nvml if name.startswith("nvml") else cuda
    result = getattr(library, name)(*arguments)
    return [result, *(any(room[:16]) for room in rooms)]


def memory_info() -> dict[str, list[int]]:
    """Return what either figure is where the other is not asked for: result, free, total."""
    answers = {}
    for name, kind in (("cuMemGetInfo_v2", ctypes.c_size_t), ("cuMemGetInfo", ctypes.c_uint)):
        for which in ("both", "free", "total", "none"):
            free, total = kind(7), kind(7)
            result = getattr(cuda, name)(
                ctypes.byref(free) if which in ("both", "free") else None,
                ctypes.byref(total) if which in ("both", "total") else None,
            )
            answers[f"{name} {which}"] = [result, free.value, total.value]
    return answers


def missing_outputs(path: Path) -> dict[str, list[Any]]:
    handle = ctypes.c_void_p()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    answers = {}
    for name, parameters in table(path):
        if not is_same_answer_wanted(name, parameters):
            continue
        outputs = sum(map(is_output, parameters))
        for given in itertools.product((False, True), repeat=outputs):
            if all(given):
                continue
            key = f"{name} {''.join('x' if one else '-' for one in given)}"
            answers[key] = call(name, parameters, given, handle)
    return answers


HUGE = 3 << 30  # above the quota, below the card
BEYOND = 9 << 40


def invalid_and_too_large() -> dict[str, int]:
    pointer, pitch, array, vmm = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_uint64()
    answers: dict[str, int] = {}

    def note(what: str, result: int) -> None:
        answers[what] = result

    for bytes_ in (MIB, HUGE, BEYOND):
        rows = bytes_ >> 10
        for element in (0, 3, 32):
            arguments = (
                ctypes.byref(pointer),
                ctypes.byref(pitch),
                ctypes.c_size_t(1024),
                ctypes.c_size_t(rows),
                element,
            )
            note(f"pitch {bytes_} element {element}", cuda.cuMemAllocPitch_v2(*arguments))
        for flags in (0, 9):
            note(
                f"managed {bytes_} flags {flags}",
                cuda.cuMemAllocManaged(ctypes.byref(pointer), ctypes.c_size_t(bytes_), flags),
            )
        for form, channels in ((0x999, 1), (0x20, 3), (0x20, 0)):
            flat = Array(rows, 1024, form, channels)
            deep = Array3D(rows, 1024, 0, form, channels)
            what = f"{bytes_} format {form} channels {channels}"
            note(f"array {what}", cuda.cuArrayCreate_v2(ctypes.byref(array), ctypes.byref(flat)))
            note(f"array3d {what}", cuda.cuArray3DCreate_v2(ctypes.byref(array), ctypes.byref(deep)))
            note(f"mipmap {what}", cuda.cuMipmappedArrayCreate(ctypes.byref(array), ctypes.byref(deep), 2))
        for size, prop, flags in (
            (bytes_ + 1, Prop(1, 0, 1, 0), 0),
            (bytes_, Prop(7, 0, 1, 0), 0),
            (bytes_, Prop(1, 64, 1, 0), 0),
            (bytes_, Prop(1, 0, 1, 0), 5),
        ):
            note(
                f"create {size} type {prop.type} handles {prop.handles} flags {flags}",
                cuda.cuMemCreate(
                    ctypes.byref(vmm), ctypes.c_size_t(size), ctypes.byref(prop), ctypes.c_uint64(flags)
                ),
            )
    context = ctypes.c_void_p()
    note("context flags", cuda.cuCtxCreate_v2(ctypes.byref(context), 0x10000, 0))
    return answers


def main() -> None:
    start()
    info = memory_info()
    path = Path(sys.argv[1])
    wanted = [name for name, parameters in table(path) if is_same_answer_wanted(name, parameters)]
    answers = {
        "missing": missing_outputs(path),
        "invalid": invalid_and_too_large(),
        "info": info,
        "called": wanted,
    }
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
