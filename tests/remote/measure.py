# SPDX-License-Identifier: Apache-2.0
"""What reading pages costs: `python -m tests.remote.measure`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families as read_text

from hypervisor.exporter.exposition import render
from hypervisor.exporter.families import families_of
from hypervisor.scraper.limits import LIMITS
from hypervisor.scraper.parser import parse
from tests.metrics import full

NODES = 100


def page_of_a_node(gpus: int = 8) -> bytes:
    """Return our own page of a node with two clients on each card."""
    known = full.snapshot()
    cards = [
        replace(known.gpus[0], uuid=f"GPU-{n:08d}-0000-0000-0000-000000000001", index=n) for n in range(gpus)
    ]
    snapshot = replace(
        known,
        gpus=tuple(cards),
        schedulers=tuple(replace(known.schedulers[0], gpu_uuid=c.uuid, gpu_index=c.index) for c in cards),
        clients=tuple(replace(v, gpu_uuid=c.uuid, gpu_index=c.index) for c in cards for v in known.clients),
    )
    return render(families_of(snapshot, has_debug_labels=False), "text").encode()


def cpu_s(work: Callable[[], object], times: int = NODES, *, best_of: int = 3) -> float:
    """Return how much CPU a number of runs takes, the least of a few measurements."""
    found = []
    for _ in range(best_of):
        begin = time.process_time()
        for _ in range(times):
            work()
        found.append(time.process_time() - begin)
    return min(found)


def worst_page() -> bytes:
    """Return a page that fills the limits, each line read the long way."""
    lines = (f'm{n % 1000}{{a="{n}é",b="\\\\{n}"}} {n}e0 1\n' for n in range(LIMITS.lines))
    return "".join(lines).encode()


def main() -> None:
    page = page_of_a_node()
    lines = len(page.splitlines())
    print(f"{NODES} pages of 8 GPUs, {len(page)} bytes and {lines} lines each")
    print(f"  ours               {cpu_s(lambda: parse(page)):.2f} s")
    print(f"  prometheus_client  {cpu_s(lambda: list(read_text(page.decode()))):.2f} s")
    worst = worst_page()
    print(f"a page that fills the limits, {len(worst) >> 20} MiB: {cpu_s(lambda: parse(worst), 1):.2f} s")


if __name__ == "__main__":
    main()
