# SPDX-License-Identifier: Apache-2.0
"""The Triton kernel of workloads.triton; Triton reads its source from the file."""

import triton
import triton.language as tl


@triton.jit
def scale(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    tl.store(x + at, tl.load(x + at, mask=keep) * 1.0001, mask=keep)
