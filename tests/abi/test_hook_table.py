# SPDX-License-Identifier: Apache-2.0
"""csrc/hooks.def against NVIDIA's headers: every row is right, and no call that it should have is missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

# Calls that take, give back or report device memory, make contexts or code, launch work or record it.
CLASSES = {
    "allocation": r"Alloc|ArrayCreate|Array3DCreate|MemCreate|MemMap|Multicast|MemPool|GraphMem"
    r"|ExternalMemory|IpcOpen|Import|Checkpoint",
    "free": r"Free|ArrayDestroy|MemRelease|MemUnmap|PoolDestroy|PoolTrim|MemTrim",
    "launch": r"^cuLaunch|Launch(?!HostFunc)|MemOp|KernelNode|Decompress",
    "graph launch": r"^cuGraph(Launch|Instantiate|Upload|ExecUpdate|ExecDestroy|Destroy$)"
    r"|^cuGraph(AddNode|AddChild|Clone)|GraphCond",
    "memory query": r"MemGetInfo|TotalMem|GetMemoryInfo",
    "context": r"^cuCtx(Create|Destroy|Attach|Detach|FromGreen|SetLimit)"
    r"|PrimaryCtx|GreenCtx(Create|Destroy|Stream)",
    "code": r"^cuModule(Load|Unload|Get)|^cuLibrary(Load|Unload|Get)|KernelGetFunction|FuncLoad",
    "capture": r"BeginCapture|EndCapture|Recapture|CaptureInfo|CaptureDep|ThreadExchange|IsCapturing",
    "look-up": r"GetProcAddress|^cuGetExportTable",
}
# Nodes' settings and questions, of which each header has dozens.
SETTINGS = re.compile(r"((Get|Set)(Params|Attribute)|MemAttribute|CopyAttributes|Granularity|Count)(_v\d+)?$")
NVML_CLASSES = (
    r"^nvmlDevice.*(Memory(Info|Usage)|Process|Pids|Accounting|FieldValues)"
    r"|^nvmlVgpuInstanceGetFbUsage|^nvmlSystemGetProcessName"
)


def passthrough() -> dict[str, str]:
    """Return the reason for each call that is deliberately not taken over."""
    lines = (line.split("#")[0].strip() for line in (HERE / "passthrough.txt").read_text().splitlines())
    return dict(line.split(None, 1) for line in lines if line)


def test_each_row_names_a_function_of_a_header(rows: Any, cuda_12: Any, cuda_13: Any, nvml: Any) -> None:
    known = set(cuda_12.functions) | set(cuda_13.functions) | set(nvml.functions)
    assert {row.name for row in rows} - known == set()


def test_each_row_is_there_once(rows: Any) -> None:
    names = [row.name for row in rows]
    assert sorted(names) == sorted(set(names))


def test_each_row_has_the_parameters_of_every_header_that_has_the_function(
    rows: Any, cuda_12: Any, cuda_13: Any, nvml: Any
) -> None:
    wrong = [
        f"{header.name}: {row.name}: hooks.def {row.parameters}, header {header.functions[row.name]}"
        for header in (cuda_12, cuda_13, nvml)
        for row in rows
        if row.name in header.functions and row.parameters != header.functions[row.name]
    ]
    assert not wrong, "\n".join(wrong)


def test_every_call_of_the_guarded_classes_is_taken_over_or_passed_through_with_a_reason(
    rows: Any, cuda_12: Any, cuda_13: Any
) -> None:
    decided = {row.name for row in rows} | set(passthrough())
    missing = [
        f"{name} ({kind}, {header.name})"
        for header in (cuda_12, cuda_13)
        for name in header.functions
        for kind, pattern in CLASSES.items()
        if re.search(pattern, name) and name not in decided and not SETTINGS.search(name)
    ]
    assert not missing, "decide in hooks.def or tests/abi/passthrough.txt:\n" + "\n".join(missing)


def test_every_nvml_call_about_memory_or_processes_is_decided(rows: Any, nvml: Any) -> None:
    decided = {row.name for row in rows} | set(passthrough())
    missing = [name for name in nvml.functions if re.search(NVML_CLASSES, name) and name not in decided]
    assert not missing, "decide in hooks.def or tests/abi/passthrough.txt:\n" + "\n".join(missing)


def test_a_stream_ordered_hook_has_its_twin_for_the_per_thread_default_stream(
    rows: Any, cuda_12: Any, cuda_13: Any
) -> None:
    hooks = {row.name for row in rows if row.is_hook}
    known = set(cuda_12.functions) | set(cuda_13.functions)
    assert {f"{name}_ptsz" for name in hooks} & known <= hooks
    assert {name.removesuffix("_ptsz") for name in hooks} & known <= hooks


def test_every_version_of_a_call_that_is_taken_over_is_decided(rows: Any, cuda_12: Any, cuda_13: Any) -> None:
    """A program is given the one of the CUDA that it was built with."""
    hooks = {row.name for row in rows if row.is_hook}
    bases = {base(name) for name in hooks}
    known = set(cuda_12.functions) | set(cuda_13.functions)
    assert {name for name in known if base(name) in bases} <= hooks | set(passthrough())


def base(name: str) -> str:
    return re.sub(r"(_v\d+)?(_ptsz)?$", "", name)


def test_passthrough_has_no_call_that_is_taken_over_or_unknown(
    rows: Any, cuda_12: Any, cuda_13: Any, nvml: Any
) -> None:
    known = set(cuda_12.functions) | set(cuda_13.functions) | set(nvml.functions)
    hooks = {row.name for row in rows if row.is_hook}
    assert set(passthrough()) & hooks == set()
    assert set(passthrough()) - known == set()
