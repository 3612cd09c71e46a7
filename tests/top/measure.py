# SPDX-License-Identifier: Apache-2.0
"""What a look at many nodes costs: `python -m tests.top.measure`."""

from __future__ import annotations

import time
from dataclasses import replace

from hypervisor.scraper.parser import parse
from hypervisor.top.cluster_rows import cluster_rows, totals_lines
from hypervisor.top.fleet import node_of
from hypervisor.top.history import History
from hypervisor.top.model import NodeView, totals_of
from hypervisor.top.node_rows import node_rows
from hypervisor.top.view_state import ViewState
from tests.remote.measure import NODES, page_of_a_node


def look(data: bytes) -> dict[str, float]:
    """Return the CPU of each step of one look, in seconds."""
    spent = {}
    begin = time.process_time()
    pages = [parse(data) for _ in range(NODES)]
    spent["reading pages"] = time.process_time() - begin
    begin = time.process_time()
    nodes: list[NodeView] = []
    for index, page in enumerate(pages):
        node, _ = node_of("x", page, None)
        nodes.append(replace(node, host=f"node-{index}", health="up"))
    spent["making nodes"] = time.process_time() - begin
    begin = time.process_time()
    totals, history = totals_of(tuple(nodes)), History()
    history.note(nodes, totals)
    totals_lines(totals, history, ViewState(), 200)
    cluster_rows(nodes, ViewState(), width=200, now_s=0)
    node_rows(nodes[0], ViewState(), history, width=200, height=50)
    spent["laying out"] = time.process_time() - begin
    return spent


def best(data: bytes, times: int = 3) -> dict[str, float]:
    """Return the cheapest of a few looks."""
    return min((look(data) for _ in range(times)), key=lambda spent: sum(spent.values()))


def main() -> None:
    data = page_of_a_node()
    spent = best(data)
    print(f"{NODES} nodes with 8 GPUs and 16 tenants each, pages of {len(data)} bytes")
    for step, seconds in spent.items():
        print(f"  {step:<14} {seconds:.2f} s of CPU")
    print(f"  {'together':<14} {sum(spent.values()):.2f} s")


if __name__ == "__main__":
    main()
