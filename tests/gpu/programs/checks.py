# SPDX-License-Identifier: Apache-2.0
"""What the programs of this folder share: checks, reported one by one as lines of JSON."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

MIB, GIB = 1 << 20, 1 << 30
QUOTA = int(os.environ.get("QUOTA_BYTES", "0"))
SEEN_S = 0.15
"""How long a full program stays so, for the observer outside."""

Check = Callable[[], "dict[str, Any] | None"]


def run(*checks: Check) -> None:
    """Run each check, whatever became of those before it; the last line says that all were tried."""
    for check in checks:
        started = time.perf_counter()
        line: dict[str, Any] = {"check": check.__name__, "ok": True, "error": ""}
        try:
            line["figures"] = check() or {}
        except Exception:
            line |= {"ok": False, "error": traceback.format_exc(), "figures": {}}
        line["seconds"] = round(time.perf_counter() - started, 3)
        print(json.dumps(line), flush=True)
    print(json.dumps({"tried": len(checks)}), flush=True)


def skip(reason: str) -> NoReturn:
    """End the program: what it is about cannot be tried here."""
    print(json.dumps({"skip": reason}), flush=True)
    sys.exit(0)


def nvidia_smi() -> dict[str, int]:
    """Return what nvidia-smi says of the first card, in bytes; it runs in this program's environment."""
    query = "--query-gpu=memory.total,memory.used"
    command = ["nvidia-smi", "-i", "0", query, "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    total, used = (int(field) * MIB for field in text.split(","))
    return {"total": total, "used": used}


def nvml_memory() -> dict[str, dict[str, int]]:
    """Return both versions of NVML's answer for the first card."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    first = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return {
        "v1": {"total": first.total, "used": first.used},
        "v2": {"total": second.total, "used": second.used},
    }


def all_views_agree(free: int, total: int, *more_totals: int) -> dict[str, Any]:
    """Compare CUDA's answer with what NVML and nvidia-smi say in the same environment."""
    views = nvml_memory()
    if shutil.which("nvidia-smi"):
        views["nvidia-smi"] = nvidia_smi()
    totals = [total, *more_totals, *(view["total"] for view in views.values())]
    used = [total - free, *(view["used"] for view in views.values())]
    assert set(totals) == {QUOTA}, totals
    assert max(used) - min(used) <= 4 * MIB, used
    return {"total_mib": total // MIB, "used_mib": used[0] // MIB, "views": len(totals)}
