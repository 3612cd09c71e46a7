# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel of workloads.triton and of tests/gpu. Triton reads its source from this file."""

import triton
import triton.language as tl


@triton.jit
def scale(x, n, factor, block: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * block + tl.arange(0, block)
    keep = at < n
    tl.store(x + at, tl.load(x + at, mask=keep) * factor, mask=keep)
