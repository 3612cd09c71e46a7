# SPDX-License-Identifier: Apache-2.0
"""What PyTorch computes, as digests, to be compared between runs: nothing here knows of quotas."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from checks import run, skip
from torch import nn

STEPS = 20


def digest(*tensors: torch.Tensor) -> dict[str, Any]:
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().reshape(-1).contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return {"digest": total.hexdigest()[:16]}


def products() -> dict[str, Any]:
    torch.manual_seed(1)
    single = torch.randn(1024, 1024, device="cuda")
    half = single.to(torch.bfloat16)
    return digest(single @ single, half @ half, torch.fft.rfft(single).abs())


def convolution() -> dict[str, Any]:
    torch.manual_seed(2)
    image = torch.randn(16, 32, 64, 64, device="cuda", requires_grad=True)
    layer = nn.Conv2d(32, 64, 3, padding=1).cuda()
    out = layer(image)
    out.square().mean().backward()
    assert image.grad is not None
    assert layer.weight.grad is not None
    return digest(out, image.grad, layer.weight.grad)


def training() -> dict[str, Any]:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 15 * 15, 10),
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    image, goal = torch.randn(64, 3, 32, 32, device="cuda"), torch.randn(64, 10, device="cuda")
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss = (model(image) - goal).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert losses[-1] < losses[0]
    return digest(*losses, *model.parameters())


if __name__ == "__main__":
    if torch.version.cuda is None:
        skip("PyTorch is built without CUDA")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    run(products, convolution, training)
