# SPDX-License-Identifier: Apache-2.0
"""Lists the cards of this machine through NVML, in a child process: NVML may hang.

`python -m limiter.cards` is that child: it prints one JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from limiter.errors import GpulimitError

TIMEOUT_S = 30


class NoCards(GpulimitError):
    """NVML cannot list the cards."""


@dataclass(frozen=True, slots=True)
class Card:
    """One card."""

    uuid: str
    index: int
    name: str
    minor: int | None
    """Minor number of its device file; None if not known."""


def cards(environment: Mapping[str, str]) -> list[Card]:
    """Return the cards that a process with this environment sees. Raises NoCards."""
    command = [sys.executable, "-P", "-m", "limiter.cards"]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NoCards(f"NVML does not answer within {TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise NoCards((done.stderr.strip() or f"status {done.returncode}").splitlines()[-1])
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise NoCards(answer["error"])
    if answer["failed"] and not answer["cards"]:
        raise NoCards(answer["failed"][0])
    for line in answer["failed"]:
        print(f"gpulimit: left out: {line}", file=sys.stderr)
    return [Card(**row) for row in answer["cards"]]


def main() -> None:
    import pynvml

    def text(value: str | bytes) -> str:
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def minor_of(handle: object) -> int | None:
        try:
            return int(pynvml.nvmlDeviceGetMinorNumber(handle))
        except pynvml.NVMLError:
            return None

    def row_of(index: int) -> dict[str, object]:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return {
            "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
            "index": index,
            "name": text(pynvml.nvmlDeviceGetName(handle)),
            "minor": minor_of(handle),
        }

    try:
        pynvml.nvmlInit()
        rows, failed = [], []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                rows.append(row_of(index))
            except pynvml.NVMLError as error:
                failed.append(f"GPU {index}: NVML: {error}")
        print(json.dumps({"cards": rows, "failed": failed}))
    except pynvml.NVMLError as error:
        print(json.dumps({"error": f"NVML: {error}"}))


if __name__ == "__main__":
    main()
