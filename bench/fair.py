# SPDX-License-Identifier: Apache-2.0
"""Who gets what when tenants share a card: with the daemon, with plain hardware slicing, and alone.

    python bench/fair.py --library build/shim/libgpulimit.so --seconds 6 --out fair.json

Each scenario runs its tenants alone first (their free rates), then together; once under the daemon and once without the
library at all. Throughput over the own free rate is the share where a load saturates the card and is not limited by
power. Needs a real card and PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Scenario:
    """Tenants as (workload, weight, processes); the first may be one that serves requests."""

    name: str
    tenants: tuple[tuple[str, int, int], ...]


SCENARIOS = (
    Scenario("two saturating 1:1", (("memory_bound", 100, 1), ("memory_bound", 100, 1))),
    Scenario("two saturating 1:3", (("memory_bound", 100, 1), ("memory_bound", 300, 1))),
    Scenario("three saturating 1:2:5", (("memory_bound", 100, 1), ("memory_bound", 200, 1), ("memory_bound", 500, 1))),
    Scenario("three processes against one", (("memory_bound", 100, 3), ("memory_bound", 100, 1))),
    Scenario("training beside saturating", (("training", 100, 1), ("memory_bound", 100, 1))),
    Scenario("GEMM 512 beside saturating", (("gemm_512", 100, 1), ("memory_bound", 100, 1))),
)


@dataclass
class Side:
    """One way of sharing: the processes of up to three tenants, and how to set their weights."""

    label: str
    env: dict[str, str]
    processes: dict[tuple[int, int], subprocess.Popen[str]] = field(default_factory=dict)

    def process(self, tenant: int, copy: int) -> subprocess.Popen[str]:
        """The copy-th process of a tenant, started at its first use."""
        if (tenant, copy) not in self.processes:
            env = os.environ | self.env | ({"GPULIMIT_TENANT": f"fair-{tenant}"} if self.env else {})
            self.processes[tenant, copy] = subprocess.Popen(
                [sys.executable, str(HERE / "tenant.py")], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        return self.processes[tenant, copy]

    def stop(self) -> None:
        """End all processes."""
        for child in self.processes.values():
            assert child.stdin is not None
            child.stdin.close()
        for child in self.processes.values():
            child.wait(timeout=20)


def tell(child: subprocess.Popen[str], command: dict[str, Any]) -> None:
    """Send one command."""
    assert child.stdin is not None
    child.stdin.write(json.dumps(command) + "\n")
    child.stdin.flush()


def answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    """The next answer; other output is passed over."""
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("ANSWER "):
            return dict(json.loads(line[7:]))
    raise RuntimeError("a tenant ended early")


def together(children: list[subprocess.Popen[str]], commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run one command in each process, from the same moment on."""
    at = time.monotonic() + 0.2
    for child, command in zip(children, commands, strict=True):
        tell(child, command | {"at": at})
    return [answer(child) for child in children]


def set_weight(cli: list[str], tenant: int, weight: int) -> None:
    """Set a tenant's weight; it holds at once."""
    subprocess.run([*cli, "quota", "set", f"fair-{tenant}", "--weight", str(weight)], check=True, stdout=subprocess.DEVNULL)


def run_scenario(side: Side, scenario: Scenario, seconds: float, cli: list[str]) -> dict[str, Any]:
    """Alone, then together; rates summed over a tenant's processes."""
    groups = [[side.process(t, c) for c in range(copies)] for t, (_, _, copies) in enumerate(scenario.tenants)]
    for (load, _, _), group in zip(scenario.tenants, groups, strict=True):
        for child in group:
            tell(child, {"prepare": load})
        for child in group:
            answer(child)
    alone = [
        together(group[:1], [{"run": load, "seconds": seconds / 3}])[0]["rate"]
        for (load, _, _), group in zip(scenario.tenants, groups, strict=True)
    ]
    if side.env:
        for t, (_, weight, _) in enumerate(scenario.tenants):
            set_weight(cli, t, weight)
    flat = [(t, child) for t, group in enumerate(groups) for child in group]
    commands = [{"run": scenario.tenants[t][0], "seconds": seconds} for t, _ in flat]
    answers = together([child for _, child in flat], commands)
    rates = [0.0] * len(groups)
    for (t, _), found in zip(flat, answers, strict=True):
        rates[t] += found["rate"]
    return {"scenario": scenario.name, "side": side.label, "alone": alone, "rates": rates}


def latency(side: Side, seconds: float, cli: list[str]) -> dict[str, Any]:
    """p50 and p99 of a tenant that serves 20 kernels every 20 ms, alone and beside a saturating one."""
    server, other = side.process(0, 0), side.process(1, 0)
    ask = {"requests": 20, "every": 0.02, "seconds": seconds}
    for child in (server, other):
        tell(child, {"prepare": "memory_bound"})
        answer(child)
    if side.env:
        subprocess.run([*cli, "quota", "set", "fair-0", "--priority", "high", "--request", "50"], check=True, stdout=subprocess.DEVNULL)
    alone = together([server], [ask])[0]
    both = together([server, other], [ask, {"run": "memory_bound", "seconds": seconds}])
    return {"scenario": "requests beside saturating", "side": side.label, "alone": alone, "served": both[0], "other": both[1]["rate"]}


def row(found: dict[str, Any]) -> str:
    """One line of the table."""
    if "served" in found:
        return (
            f"{found['scenario']:28} {found['side']:8} p50 {found['served']['p50']:.2f} ms, p99 {found['served']['p99']:.2f} ms "
            f"(alone {found['alone']['p50']:.2f}, {found['alone']['p99']:.2f}); the other {found['other']:.0f} it/s"
        )
    of_alone = [r / a for r, a in zip(found["rates"], found["alone"], strict=True)]
    shares = " ".join(f"{x / sum(of_alone):.3f}" for x in of_alone)
    rates = " ".join(f"{r:.0f}" for r in found["rates"])
    return f"{found['scenario']:28} {found['side']:8} it/s {rates:24} of alone {' '.join(f'{x:.3f}' for x in of_alone):22} shares {shares:20} sum {sum(of_alone):.3f}"


def main() -> None:
    """Run every scenario on every side; the table comes last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--scenarios", default="all", help="numbers from 1, comma-separated; 0 is the latency one")
    parser.add_argument("--sides", default="plain,daemon")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = range(len(SCENARIOS) + 1) if options.scenarios == "all" else [int(n) for n in options.scenarios.split(",")]
    results = []
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/hypervisor.sock"
        cli = [sys.executable, "-m", "limiter"]
        os.environ["GPULIMIT_SOCKET"] = socket if "daemon" in options.sides else ""
        for label in options.sides.split(","):
            daemon = subprocess.Popen([*cli, "daemon", "--socket", socket]) if label == "daemon" else None
            env = {"LD_PRELOAD": str(options.library.resolve()), "GPULIMIT_SOCKET": socket} if daemon else {}
            side = Side(label, env)
            for n in chosen:
                found = latency(side, options.seconds, cli) if n == 0 else run_scenario(side, SCENARIOS[n - 1], options.seconds, cli)
                results.append(found)
                print(row(found), file=sys.stderr, flush=True)
            side.stop()
            if daemon:
                daemon.terminate()
                daemon.wait(timeout=20)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))
    print("\n".join(row(found) for found in results))


if __name__ == "__main__":
    main()
