# SPDX-License-Identifier: Apache-2.0
"""Memory totals of cards for which NVML has none, such as GPUs that share the system's memory.

A total that the operator gives comes first. CUDA is asked next: in a process of its own, which may hang, and
once for all cards.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

ANSWER_S = 20.0
CUDA_MODULE = "hypervisor.nvml.cuda_totals"


class Unknown(Exception):
    """Nothing says how much memory a card has."""


class Totals:
    """Any thread. `given` has bytes by UUID, by index, or for all cards ("*")."""

    def __init__(self, given: Mapping[str, int]) -> None:
        self._given = given
        self._lock = threading.Lock()
        self._cuda: dict[str, int] | None = None
        self._trouble = ""
        self._process: subprocess.Popen[bytes] | None = None

    def of(self, uuid: str, index: int) -> tuple[int, str]:
        """Return a card's total, and who says it. Raises Unknown."""
        for key, total in self._given.items():
            if key == str(index) or (len(key) > 3 and uuid.lower().startswith(key.lower())):
                return total, "option"
        if "*" in self._given:
            return self._given["*"], "option"
        with self._lock:
            if self._cuda is None:
                self._cuda = self._ask_cuda()
            total = self._cuda.get(uuid.lower(), 0)
        if not total:
            reason = self._trouble or "CUDA does not know this GPU"
            raise Unknown(f"NVML gives no memory total; {reason}: set gpu_memory")
        return total, "cuda"

    def forget(self) -> None:
        """Ask CUDA again when a total is needed."""
        with self._lock:
            self._cuda = None

    def _ask_cuda(self) -> dict[str, int]:
        """Return bytes by UUID; {} with `_trouble` set if there is no answer."""
        if self._process is not None and self._process.poll() is None:
            return {}  # the one before cannot be killed
        argv = (sys.executable, "-P", "-m", CUDA_MODULE)
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            output, _ = self._process.communicate(timeout=ANSWER_S)
            answer: dict[str, Any] = json.loads(output)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._trouble = f"CUDA does not answer within {ANSWER_S:g} s"
            return {}
        except ValueError:
            self._trouble = "the process that asks CUDA ended"
            return {}
        self._trouble = str(answer.get("error", ""))
        return {str(uuid).lower(): int(total) for uuid, total in answer.get("totals", {}).items()}
