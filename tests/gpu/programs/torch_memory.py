# SPDX-License-Identifier: Apache-2.0
"""PyTorch's allocators under a memory quota: torch_memory.py native|expandable|async."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import torch
from checks import GIB, MIB, QUOTA, SEEN_S, all_views_agree, run, skip

KIND = sys.argv[1]
BLOCK = 64 * MIB
ODD_SIZES = (1153434, 3 * MIB + 1, BLOCK)  # 1.1 MiB


def block(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def free_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


def empty_cache() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def the_allocator_is_the_one_asked_for() -> None:
    held = block(BLOCK)
    assert torch.cuda.get_allocator_backend() == ("cudaMallocAsync" if KIND == "async" else "native")
    if KIND != "async":
        kinds = {segment["is_expandable"] for segment in torch.cuda.memory_snapshot()}
        assert kinds == {KIND == "expandable"}, kinds
    del held


def what_comes_with_the_first_use() -> dict[str, Any]:
    """Code of the kernels and PyTorch's streams are on the card from their first use on, and charged."""
    before = free_bytes()
    with torch.cuda.stream(torch.cuda.Stream()):
        assert int(block(BLOCK).fill_(3)[-1]) == 3
    empty_cache()
    after = free_bytes()
    assert 0 <= before - after < 512 * MIB, (before, after)
    return {"charged_mib": (before - after) // MIB}


def every_view_shows_the_quota() -> dict[str, Any]:
    return all_views_agree(*torch.cuda.mem_get_info(), torch.cuda.get_device_properties(0).total_memory)


def fill(sizes: tuple[int, ...]) -> tuple[list[torch.Tensor], str]:
    """Take blocks of all sizes by turns until each is refused; return them and the last refusal."""
    held, wanted, message = [], list(sizes), ""
    while wanted:
        for size in list(wanted):
            try:
                held.append(block(size))
            except torch.cuda.OutOfMemoryError as error:
                message = str(error)
                wanted.remove(size)
        assert sum(b.numel() for b in held) <= QUOTA
    time.sleep(SEEN_S)
    return held, message


def blocks_fit_up_to_the_quota() -> dict[str, Any]:
    empty_cache()
    before = free_bytes()
    held, message = fill((BLOCK,))
    got, left = sum(b.numel() for b in held), free_bytes()
    assert issubclass(torch.cuda.OutOfMemoryError, torch.OutOfMemoryError)
    assert f"{QUOTA / GIB:.2f} GiB" in message, message
    assert before - got < 2 * BLOCK, (before, got)
    return {"free_before_mib": before // MIB, "got_mib": got // MIB, "left_mib": left // MIB}


def blocks_of_odd_sizes_fit_up_to_the_quota() -> dict[str, Any]:
    empty_cache()
    before = free_bytes()
    held, _ = fill(ODD_SIZES)
    got = sum(b.numel() for b in held)
    assert got > before // 2
    return {"blocks": len(held), "got_mib": got // MIB, "left_mib": free_bytes() // MIB}


def memory_that_was_freed_can_be_had_again() -> dict[str, Any]:
    empty_cache()
    before = free_bytes()
    held = block(GIB).fill_(3)
    assert int(held[-1]) == 3
    during = free_bytes()
    del held
    empty_cache()
    after = free_bytes()
    assert abs(before - during - GIB) < BLOCK, (before, during)
    assert before - after < BLOCK, (before, after)
    return {"free_mib": [before // MIB, during // MIB, after // MIB]}


def a_long_run_of_large_blocks_in_two_streams_is_never_refused() -> dict[str, Any]:
    before, rounds = free_bytes(), 300
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for i in range(rounds):
        with torch.cuda.stream(streams[i % 2]):
            held = block(GIB - i * 4096).fill_(i % 256)
            del held
    empty_cache()
    after = free_bytes()
    assert before - after < BLOCK, (before, after)
    return {"rounds": rounds, "free_mib": [before // MIB, after // MIB]}


if __name__ == "__main__":
    if torch.version.cuda is None:
        skip("PyTorch is built without CUDA")
    run(
        the_allocator_is_the_one_asked_for,
        every_view_shows_the_quota,
        what_comes_with_the_first_use,
        blocks_fit_up_to_the_quota,
        memory_that_was_freed_can_be_had_again,
        blocks_of_odd_sizes_fit_up_to_the_quota,
        memory_that_was_freed_can_be_had_again,
        a_long_run_of_large_blocks_in_two_streams_is_never_refused,
        every_view_shows_the_quota,
    )
