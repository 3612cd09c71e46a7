# SPDX-License-Identifier: Apache-2.0
"""One rank of a PyTorch job over several cards, which runs on command, for gang.py.

Started with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.  Rank r uses card r.  Reads JSON lines on stdin and answers
each with one line "ANSWER {…}".  All ranks get the same commands.

    {"run": NAME, "seconds": S}     {"rate": steps a second, "first_step_s": since the process began, "steps"}
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

BEGAN = time.time()
CHUNK_S = 0.1
"""Time of a chunk at full speed: the steps between two checks of the clock, which all ranks make together."""


def linears(count: int, width: int) -> Any:
    import torch

    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(count)]).cuda().bfloat16()


def trainer(model: Any, width: int) -> Callable[[], None]:
    """Return a training step of eight layers on 4096 rows."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.randn(4096, width, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(data).square().mean().backward()
        optimizer.step()

    return step


def ddp(rank: int) -> Callable[[], None]:
    from torch.nn.parallel import DistributedDataParallel

    return trainer(DistributedDataParallel(linears(8, 4096), device_ids=[rank]), 4096)


def fsdp(rank: int) -> Callable[[], None]:
    del rank
    from torch.distributed.fsdp import fully_shard

    model = linears(8, 4096)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    return trainer(model, 4096)


def tp(rank: int) -> Callable[[], None]:
    """Return a step of eight matrix products, with an all-reduce after each."""
    del rank
    import torch
    import torch.distributed as dist

    weights = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) * 0.01 for _ in range(8)]
    data = torch.randn(512, 4096, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        value = data
        for weight in weights:
            value = value @ weight
            dist.all_reduce(value)

    return step


def pipeline(rank: int) -> Callable[[], None]:
    """Return a step of four micro-batches through the cards, forward only. Each card waits for the one before."""
    import torch
    import torch.distributed as dist

    model, ranks = linears(8, 4096), dist.get_world_size()
    data = torch.randn(2048, 4096, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        with torch.no_grad():
            for _ in range(4):
                value = data
                if rank > 0:
                    value = torch.empty_like(data)
                    dist.recv(value, rank - 1)
                value = model(value)
                if rank + 1 < ranks:
                    dist.send(value, rank + 1)

    return step


JOBS = {"ddp": ddp, "tp": tp, "fsdp": fsdp, "pipeline": pipeline}


class Rank:
    """The jobs of one rank, by name."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.number = int(os.environ["RANK"])
        torch.cuda.set_device(self.number)
        dist.init_process_group("nccl", device_id=torch.device("cuda", self.number))
        self._stop = torch.zeros(1, device="cuda")
        self._steps: dict[str, tuple[Callable[[], None], int]] = {}
        self._first_step_s = 0.0

    def _prepare(self, name: str) -> tuple[Callable[[], None], int]:
        """Return a job's step, and the number of steps of a chunk, which is the same on all ranks."""
        import torch
        import torch.distributed as dist

        if name not in self._steps:
            step = JOBS[name](self.number)
            for n in range(6):
                step()
                if n == 0:
                    torch.cuda.synchronize()
                    self._first_step_s = self._first_step_s or time.time() - BEGAN
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(10):
                step()
            torch.cuda.synchronize()
            count = torch.tensor([max(1.0, CHUNK_S * 10 / (time.perf_counter() - begin))], device="cuda")
            dist.all_reduce(count, dist.ReduceOp.MIN)
            self._steps[name] = step, int(count.item())
        return self._steps[name]

    def run(self, name: str, seconds: float) -> dict[str, Any]:
        """Run steps for `seconds`. All ranks end at the same step."""
        import torch
        import torch.distributed as dist

        step, chunk = self._prepare(name)
        dist.barrier()
        torch.cuda.synchronize()
        begin, steps, goes_on = time.perf_counter(), 0, seconds > 0
        while goes_on:
            for _ in range(chunk):
                step()
            steps += chunk
            self._stop.fill_(float(time.perf_counter() - begin >= seconds))
            dist.all_reduce(self._stop)
            goes_on = not self._stop.item()
        rate = steps / (time.perf_counter() - begin)
        return {"rate": rate, "steps": steps, "first_step_s": self._first_step_s}


def main() -> None:
    """Serve commands until stdin ends."""
    rank = Rank()
    for line in sys.stdin:
        command = json.loads(line)
        print("ANSWER " + json.dumps(rank.run(command["run"], command["seconds"])), flush=True)
    os._exit(0)  # NCCL's shutdown would wait for the other ranks


if __name__ == "__main__":
    main()
