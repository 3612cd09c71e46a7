# SPDX-License-Identifier: Apache-2.0
"""torch.compile with CUDA graphs under a memory quota."""

from __future__ import annotations

from typing import Any

import torch
from checks import run, skip
from torch import nn


def a_compiled_model_agrees_with_itself() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 64)).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(5):  # warm-up, capture, replays
            x = torch.randn(32, 256, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            difference = (compiled(x) - model(x)).abs().max().item()
            assert difference < 1e-2, difference
    from torch._dynamo.utils import counters

    skipped = counters["inductor"].get("cudagraph_skips", 0)
    assert skipped == 0
    return {"difference": difference}


if __name__ == "__main__":
    if torch.version.cuda is None:
        skip("PyTorch is built without CUDA")
    run(a_compiled_model_agrees_with_itself)
