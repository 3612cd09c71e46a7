# SPDX-License-Identifier: Apache-2.0
"""Run a node daemon and three tenants with unequal shares of one GPU, and show what each one gets.

One tenant reaches its memory quota.  One is killed, and its share goes to the others.  The daemon is killed
and restarted while programs run on.  At the end, a table compares each tenant's share with its due.

The demo runs on the first GPU, or on a simulated one if there is none, and says which.  It takes about 30
seconds.  The exit status is 0 if everything was as promised, else 1.  It leaves nothing behind, even after
Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from limiter import environment
from limiter.demo.daemon import Host
from limiter.demo.display import Screen
from limiter.demo.scenario import Outcome, Story
from limiter.demo.tenants import company
from limiter.demo.verdict import describe
from limiter.doctor.driver import probe
from limiter.errors import GpulimitError

DEFAULT_SECONDS = 15.0
STEERING = ("GPULIMIT", "CUDA_DEVICE_", "TENSOR_FUSION_", "LD_PRELOAD")
"""Beginnings of variables that would change the demo's own quotas or its daemon's options."""
KEPT = ("GPULIMIT_LIB_DIR", "GPULIMIT_SIM_", "CUDA_DEVICE_ORDER")
MAX_FOLDER_CHARS = 60
ENDING = (signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sim", action="store_true", help="use a simulated GPU even if there is a real one")
    seconds = f"seconds to measure ({DEFAULT_SECONDS:g})"
    parser.add_argument("--seconds", type=float, default=DEFAULT_SECONDS, metavar="S", help=seconds)


def run(options: argparse.Namespace) -> int:
    screen = Screen()
    with orderly_end(), tempfile.TemporaryDirectory(prefix="gpulimit-demo-", dir=short_folder()) as folder:
        variables, gpu = choose_gpu(sim=options.sim, folder=Path(folder))
        screen.say(introduction(gpu))
        outcome = play(screen, variables, gpu, Path(folder), options.seconds)
    screen.say(f"\n{describe(outcome.verdicts, outcome.windows)}\n")
    for problem in outcome.problems:
        screen.say(f"not as promised: {problem}")
    screen.say(f"{outcome.closing}{' (on a simulated GPU)' if gpu['simulated'] else ''}")
    return 0 if outcome.is_good else 1


def short_folder() -> str | None:
    """Return the folder for temporary files if the usual one has too long a name for a socket."""
    return "/tmp" if len(tempfile.gettempdir()) > MAX_FOLDER_CHARS else None


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """End the demo on SIGTERM and on a closed terminal as on Ctrl-C. Only the first signal counts: a second
    one
    would interrupt the cleanup.
    """

    def leave(number: int, _: object) -> NoReturn:
        ignore_signals()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    heard = [n for n in (signal.SIGINT, *ENDING) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    for number in (signal.SIGINT, *ENDING):
        signal.signal(number, signal.SIG_IGN)


def play(
    screen: Screen, variables: dict[str, str], gpu: dict[str, Any], folder: Path, seconds: float
) -> Outcome:
    """Run daemon and tenants, and always end and remove them."""
    host = Host(variables, folder, is_simulated=gpu["simulated"])
    actors = company(variables, gpu["gpus"][0]["total_bytes"], host.socket)
    try:
        return Story(screen, host, actors, seconds).run()
    finally:
        ignore_signals()
        for actor in actors:
            actor.leave()
        host.stop()
        host.remove(actor.tenant for actor in actors)


def choose_gpu(*, sim: bool, folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the environment of daemon and tenants, and the driver's answer; simulated if there is no GPU."""
    variables = {k: v for k, v in os.environ.items() if k.startswith(KEPT) or not k.startswith(STEERING)}
    answer = {} if sim else probe("driver", variables)
    if not answer.get("gpus"):
        # A separate machine, so that other programs on simulated GPUs do not interfere.
        variables["GPULIMIT_SIM_STATE"] = str(folder / "sim.state")
        environment.use_simulated_driver(variables)
        answer = probe("driver", variables)
    if not answer.get("gpus"):
        raise GpulimitError(f"demo: {answer.get('error', 'the driver shows no GPU')}")
    return variables, answer


def introduction(gpu: dict[str, Any]) -> str:
    name = gpu["gpus"][0]["name"]
    if gpu["simulated"]:
        return f"SIMULATED GPU, no real one is used: {name}\nA daemon, and three tenants that share it:\n"
    return f"{name}\nA daemon, and three tenants that share it:\n"
