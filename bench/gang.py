# SPDX-License-Identifier: Apache-2.0
"""Measures jobs over several cards under limits and beside other tenants, and programs on one card that wait.

    python bench/gang.py --library build/shim/libgpulimit.so --seconds 5 --out gang.json

With two cards or more: PyTorch jobs (gang_rank.py) under a limit without a daemon, and the time to their first step.
With the daemon: the jobs beside a saturating tenant on each card, or on one of them.  On the first card: a kernel that
waits for a later launch, and two processes that wait for each other.  Every figure is a fraction of the speed of the
same program alone, in the same run and under the library.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import fair  # noqa: E402
from child import Child  # noqa: E402

NEIGHBOUR = "memory_bound"
PARTS = ("waits", "pair", "limits", "start", "shares")


@dataclass
class Job:
    """The processes of one job's ranks. They live for several measurements."""

    cards: int
    env: dict[str, str]
    ranks: list[Child] = field(default_factory=list)

    def __post_init__(self) -> None:
        port = str(20000 + os.getpid() % 20000 + int(time.monotonic() * 10) % 1000)
        world = {"WORLD_SIZE": str(self.cards), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        self.ranks = [Child(self.env | world | {"RANK": str(n)}, "gang_rank.py") for n in range(self.cards)]

    def tell(self, name: str, seconds: float) -> None:
        for rank in self.ranks:
            rank.tell({"run": name, "seconds": seconds})

    def answer(self) -> dict[str, Any]:
        answers = [rank.answer() for rank in self.ranks]
        return answers[0]

    def run(self, name: str, seconds: float) -> dict[str, Any]:
        self.tell(name, seconds)
        return self.answer()

    def stop(self) -> None:
        for rank in self.ranks:
            rank.stop()


class Bench:
    """The measurements and their rows."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.cards: int = options.cards
        self.rows: list[dict[str, Any]] = []

    def add(self, part: str, what: str, **figures: Any) -> None:
        row = {"part": part, "what": what} | {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
        self.rows.append(row)
        print(text_of(row), file=sys.stderr, flush=True)
        if self.options.out:
            self.options.out.write_text(json.dumps(self.rows, indent=1))

    def standalone(self, tenant: str, **variables: str) -> dict[str, str]:
        """Return the environment of a process under the library without a daemon."""
        return {"LD_PRELOAD": str(self.options.library.resolve()), "GPULIMIT_TENANT": tenant} | variables

    # ---- one card ----

    def load(self, env: dict[str, str], *arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "limiter", "load", "--json", *arguments]
        done = subprocess.run(command, env=os.environ | env, cwd=HERE.parent, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        return dict(json.loads(done.stdout))

    def waits(self) -> None:
        """Measure a kernel that waits for a later launch of the same process."""
        for limit, rounds in ((1, 30), (10, self.options.rounds), (50, self.options.rounds)):
            env = self.standalone(f"gang-waits-{limit}", GPULIMIT_COMPUTE=str(limit))
            found = self.load(env, "--await", str(rounds), "--kernel", "50us")
            self.add("waits", f"limit {limit}", rounds=rounds, bail_outs=found["bail_outs"], longest_s=found["longest_round_s"])

    def pair(self) -> None:
        """Measure two processes that wait for each other on one card."""
        job = ("--ranks", "2", "--ranks-on-one-gpu", "--seconds", str(self.options.seconds))
        alone = self.load(self.standalone("gang-pair"), *job)["steps_per_s"]
        for limit in (10, 20, 50, 80):
            env = self.standalone(f"gang-pair-{limit}", GPULIMIT_COMPUTE=str(limit))
            self.add("pair", f"limit {limit}", speed=self.load(env, *job)["steps_per_s"] / alone)

    # ---- several cards ----

    def limits(self) -> None:
        """Measure limits without a daemon, set while the job runs."""
        job = Job(self.cards, self.standalone("gang-limits", GPULIMIT_COMPUTE="100"))
        for name in self.options.jobs:
            set_limit("gang-limits", self.cards, 100)
            alone = job.run(name, self.options.seconds)["rate"]
            for limit in self.options.limits:
                set_limit("gang-limits", self.cards, limit)
                job.run(name, 0.5)
                rate = job.run(name, self.options.seconds)["rate"]
                self.add("limits", f"{name} limit {limit}", speed=rate / alone, alone=alone)
        job.stop()

    def start(self) -> None:
        """Measure the time from the start of the processes to the first step."""
        took: dict[str, float] = {}
        for limit in ("none", "50", "20"):
            env = {} if limit == "none" else self.standalone(f"gang-start-{limit}", GPULIMIT_COMPUTE=limit)
            job = Job(self.cards, env)
            took[limit] = job.run(self.options.jobs[0], 0)["first_step_s"]
            job.stop()
            self.add("start", f"limit {limit}", first_step_s=took[limit], times=took[limit] / took["none"])

    def shares(self) -> None:
        """Measure jobs with the daemon, beside a saturating tenant on each card and on the first card only."""
        side = fair.Side("daemon", self.options.library, self.folder)
        try:
            side.start_daemon()
            job = Job(self.cards, side.env(0))
            neighbours = [Child(side.env(1 + n) | {"CUDA_VISIBLE_DEVICES": str(n)}) for n in range(self.cards)]
            self._shares(side, job, neighbours)
            for child in (*neighbours, job):
                child.stop()
        finally:
            side.stop()

    def _shares(self, side: fair.Side, job: Job, neighbours: Sequence[Child]) -> None:
        seconds = self.options.seconds
        for child in neighbours:
            child.ask({"prepare": NEIGHBOUR})
        alone = [beside([child], seconds + 1.5)()[0] for child in neighbours]
        for name in self.options.jobs:
            free = job.run(name, seconds)["rate"]
            for request, count in ((50, self.cards), (25, self.cards), (75, self.cards), (50, 1)):
                for tenant in range(1 + self.cards):  # so that no change asks for more than is free
                    side.set_quota(tenant, request="1")
                for tenant, percent in ((0, request), *((1 + n, 100 - request) for n in range(self.cards))):
                    side.set_quota(tenant, request=str(percent), weight=str(percent))
                finish = beside(neighbours[:count], seconds + 1.5)
                time.sleep(0.5)
                rate = job.run(name, seconds)["rate"]
                others = [got / free_rate for got, free_rate in zip(finish(), alone, strict=False)]
                where = "each card" if count == self.cards else "card 0"
                self.add("shares", f"{name} request {request}, neighbour on {where}", speed=rate / free, neighbours=rounded(others))


def beside(children: Sequence[Child], seconds: float) -> Any:
    """Start neighbours. Return a function that waits for them and returns their rates in the window's middle."""
    at = time.monotonic() + 0.2
    for child in children:
        child.tell({"run": NEIGHBOUR, "seconds": seconds, "at": at})

    def finish() -> list[float]:
        answers = [child.answer() for child in children]
        whole = int(seconds - 1.5)  # seconds in which the job runs, from the second one on
        middles = [answer["by_second"][1 : max(2, whole)] for answer in answers]
        return [sum(middle) / len(middle) for middle in middles]

    return finish


def set_limit(tenant: str, cards: int, percent: int) -> None:
    """Set a standalone tenant's limit on its cards.

    A child process does it: if this process closed the segment, its own record locks would be dropped.
    """
    program = (
        f"from limiter.live_quota import LiveTenant\nwith LiveTenant({tenant!r}) as live:\n"
        f"    for card in range({cards}): live.set(card, compute_percent={percent})"
    )
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    for _ in range(60):  # the segment is there from the first CUDA call on, a card's entry a little later
        done = subprocess.run([sys.executable, "-c", program], env=env, cwd=HERE.parent, capture_output=True, text=True)
        if not done.returncode:
            return
        time.sleep(0.5)
    raise RuntimeError(done.stderr)


def rounded(figures: Sequence[float]) -> list[float]:
    return [round(figure, 3) for figure in figures]


def text_of(row: dict[str, Any]) -> str:
    """Return a row as text."""
    figures = "  ".join(f"{name} {value}" for name, value in row.items() if name not in ("part", "what"))
    return f"{row['part']:8} {row['what']:44} {figures}"


def cards_here() -> int:
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return len(visible.split(","))
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return len(listed.stdout.splitlines()) or 1


def main() -> None:
    """Run the parts for which there are enough cards, and print the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of a window")
    parser.add_argument("--jobs", type=lambda text: text.split(","), default=["ddp", "tp", "fsdp", "pipeline"])
    parser.add_argument("--limits", type=lambda text: [int(word) for word in text.split(",")], default=[20, 50, 80])
    parser.add_argument("--rounds", type=int, default=200, help="rounds of a kernel that waits for a later launch")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--cards", type=int, default=0, help="0: all")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.cards = options.cards or cards_here()
    needs_cards = {"limits", "start", "shares"}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        for part in options.parts:
            if options.cards > 1 or part not in needs_cards:
                getattr(bench, part)()
    print("\n".join(text_of(row) for row in bench.rows))


if __name__ == "__main__":
    main()
