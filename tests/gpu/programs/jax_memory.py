# SPDX-License-Identifier: Apache-2.0
"""JAX under a memory quota: jax_memory.py ahead|grow|async, by how it is told to take memory."""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
from checks import GIB, MIB, QUOTA, SEEN_S, run, skip

KIND = sys.argv[1]
BLOCK = 128 * MIB


def block() -> Any:
    return jax.block_until_ready(jnp.zeros(BLOCK, dtype=jnp.uint8))


def its_limit_is_a_part_of_the_quota() -> dict[str, Any]:
    stats = jax.devices()[0].memory_stats() or {}
    limit = stats.get("bytes_limit", 0)
    assert 0 < limit <= QUOTA or KIND == "async", stats
    if KIND == "ahead":
        assert 0.5 * QUOTA < limit < 0.8 * QUOTA, stats
    return {"limit_mib": limit // MIB}


def products() -> None:
    a = jnp.ones((512, 512))
    assert float((a @ a).sum()) == 512.0**3


def fills_and_goes_on() -> dict[str, Any]:
    held: list[Any] = []
    refusal = ""
    while not refusal:
        assert len(held) * BLOCK <= QUOTA
        try:
            held.append(block())
        except Exception as error:
            refusal = str(error)
    assert "RESOURCE_EXHAUSTED" in refusal, refusal
    time.sleep(SEEN_S)
    got = len(held) * BLOCK
    assert got >= 2 * GIB, got
    held.clear()
    held = [block() for _ in range(4)]
    assert int(held[-1][-1]) == 0
    return {"got_mib": got // MIB}


if __name__ == "__main__":
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in range(12, 20)):
        skip("JAX is installed without CUDA")
    run(products, its_limit_is_a_part_of_the_quota, fills_and_goes_on, products)
