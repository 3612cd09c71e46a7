# SPDX-License-Identifier: Apache-2.0
"""Four threads whose first CUDA call is a large allocation, as loaders of weights do it."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from checks import MIB, SEEN_S, run, skip

THREADS, SIZE = 4, 512 * MIB


def threads_without_a_context_can_allocate() -> dict[str, Any]:
    held: dict[int, torch.Tensor] = {}
    errors: list[BaseException] = []
    together = threading.Barrier(THREADS)

    def load(number: int) -> None:
        together.wait()
        try:
            held[number] = torch.empty(SIZE, dtype=torch.uint8, device="cuda").fill_(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=load, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors, errors
    assert [int(held[n][-1]) for n in range(THREADS)] == list(range(THREADS))
    time.sleep(SEEN_S)
    free, total = torch.cuda.mem_get_info()
    used, reserved = total - free, torch.cuda.memory_reserved()
    assert reserved >= THREADS * SIZE
    assert 0 < used - reserved < 1024 * MIB  # one context and its code
    return {"used_mib": used // MIB, "reserved_mib": reserved // MIB}


if __name__ == "__main__":
    if torch.version.cuda is None:
        skip("PyTorch is built without CUDA")
    run(threads_without_a_context_can_allocate)
