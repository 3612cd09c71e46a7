# SPDX-License-Identifier: Apache-2.0
"""Show quotas at work: three tenants on one GPU, a full quota, a killed process, and what each one got.

Runs on the first GPU if there is one, else on a simulated GPU, and says which.  Takes some 15 seconds.
Exit status 0 if everything was as promised, else 1.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

from limiter import environment
from limiter.demo.screen import Screen
from limiter.demo.story import Story
from limiter.demo.verdict import describe
from limiter.doctor.driver import probe
from limiter.errors import GpulimitError

DEFAULT_SECONDS = 8.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sim", action="store_true", help="use a simulated GPU even if there is a real one")
    add_seconds = parser.add_argument
    add_seconds("--seconds", type=float, default=DEFAULT_SECONDS, metavar="S", help="how long to measure (8)")


def run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="gpulimit-demo-") as folder:
        variables, gpu = choose_gpu(sim=options.sim, folder=Path(folder))
        screen = Screen()
        screen.say(introduction(gpu))
        verdicts = Story(screen, variables, options.seconds).run()
    kept = not any(verdict.problems for verdict in verdicts)
    screen.say(f"\n{describe(verdicts)}")
    closing = "everything as promised" if kept else "NOT everything was as promised"
    screen.say(f"\n{closing}{' (on a simulated GPU)' if gpu['simulated'] else ''}")
    return 0 if kept else 1


def choose_gpu(*, sim: bool, folder: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the environment of the tenants, and what the driver says; simulated where there is no GPU."""
    variables = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    answer = {} if sim else probe("driver", variables)
    if not answer.get("gpus"):
        # A machine of its own, so that what else runs on simulated GPUs does not meddle.
        variables["GPULIMIT_SIM_STATE"] = str(folder / "sim.state")
        environment.use_simulated_driver(variables)
        answer = probe("driver", variables)
    if not answer.get("gpus"):
        raise GpulimitError(f"demo: {answer.get('error', 'the driver shows no GPU')}")
    return variables, answer


def introduction(gpu: dict[str, Any]) -> str:
    name = gpu["gpus"][0]["name"]
    if gpu["simulated"]:
        return f"SIMULATED GPU, no real one here: {name}\nThree tenants share it:\n"
    return f"{name}\nThree tenants share it:\n"
