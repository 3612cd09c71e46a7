# SPDX-License-Identifier: Apache-2.0
"""A job of several ranks: starts a process per rank, connects them, and ends them at the same step.

The parent uses no GPU.  It exchanges lines of JSON with each rank over the rank's standard input and output:

    to a rank    settings, rank and began (time of the start), handle (of the shared memory words), go, pause,
                 finish (at a step), lost (reason, if a rank has failed), end
    from a rank  handle (rank 0), ready, paused (at a step), result, error

To end, all ranks pause and report how many steps they have queued.  All then continue to the largest of these
numbers, so that no rank waits for one that has ended.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from limiter.errors import GpulimitError
from limiter.workload.job_settings import JobSettings

Message = dict[str, Any]
SET_UP_S = 300.0
GRACE_S = 10.0
"""Time beyond a rank's time-out after which the parent ends the remaining ranks of a job that lost one."""


class RankFailed(GpulimitError):
    """A rank ended before the others, or the ranks made no progress within the time-out."""


class RankProcess:
    """The parent's side of one rank: the process and its last message of each kind."""

    def __init__(self, settings: JobSettings, number: int, inbox: queue.Queue[tuple[int, Message]]) -> None:
        self.number = number
        self.seen: dict[str, Message] = {}
        self.over = False
        environ = dict(os.environ) | settings.environ_of(number)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "limiter.workload.rank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )
        self._inbox = inbox
        self.tell({"settings": settings.as_data(), "rank": number, "began": time.monotonic()})
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, message: Message) -> None:
        """Send a message.  It is lost if the rank has ended."""
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._inbox.put((self.number, json.loads(line)))
        self.process.wait()
        self._inbox.put((self.number, {"ended": self.process.returncode}))

    @property
    def failed(self) -> str:
        """Reason for the rank's failure.  Empty if the rank has not failed."""
        if error := self.seen.get("error"):
            return str(error["error"])
        if not self.over or "result" in self.seen:
            return ""
        code = self.process.returncode
        if code < 0:
            return f"rank {self.number} was killed by {signal.Signals(-code).name}"
        return f"rank {self.number} ended with status {code}"


class Job:
    """One run of a job.  Each object runs once."""

    def __init__(self, settings: JobSettings) -> None:
        self.settings = settings
        self.stop = threading.Event()
        self._inbox: queue.Queue[tuple[int, Message]] = queue.Queue()
        self._ranks: list[RankProcess] = []
        self._lost_at = 0.0

    def run(self) -> list[Message]:
        """Return each rank's result.  Raises RankFailed, which names the rank that failed first."""
        try:
            self._ranks = [RankProcess(self.settings, n, self._inbox) for n in range(self.settings.ranks)]
            self._run()
        finally:
            for rank in self._ranks:
                rank.process.kill()
                rank.process.wait()
        self._check()
        return [rank.seen["result"]["result"] for rank in self._ranks]

    def _run(self) -> None:
        if not self._set_up(lambda: "handle" in self._ranks[0].seen):
            return
        self._tell_all(self._ranks[0].seen["handle"])
        if not self._set_up(lambda: self._all_have("ready")):
            return
        self._tell_all({"go": True})
        if not self.settings.steps:
            self._await(lambda: self.stop.is_set() or self._all_have("result"), self.settings.seconds)
            self._tell_all({"pause": True})
            self._await(lambda: self._all_have("paused", "result"), float("inf"))
            paused = (rank.seen["paused"]["paused"] for rank in self._ranks if "paused" in rank.seen)
            self._tell_all({"finish": max(paused, default=0)})
        self._await(lambda: self._all_have("result"), float("inf"))
        self._tell_all({"end": True})
        self._await(lambda: all(rank.over for rank in self._ranks), float("inf"))

    def _set_up(self, condition: Callable[[], bool]) -> bool:
        """Wait at most SET_UP_S for a condition of the set-up.  Return False as soon as a rank has failed."""
        self._await(lambda: condition() or self._lost_at > 0, SET_UP_S)
        return condition() and not self._lost_at

    def _check(self) -> None:
        failures = [rank.failed for rank in self._ranks if rank.failed]
        if failures:
            first = [rank.failed for rank in self._ranks if rank.failed and "error" not in rank.seen]
            raise RankFailed("; ".join(dict.fromkeys(first + failures)))
        missing = [str(rank.number) for rank in self._ranks if "result" not in rank.seen]
        if missing:
            raise RankFailed(f"no result from rank {', '.join(missing)}")

    def _tell_all(self, message: Message) -> None:
        for rank in self._ranks:
            rank.tell(message)

    def _all_have(self, *names: str) -> bool:
        return all(rank.over or any(name in rank.seen for name in names) for rank in self._ranks)

    def _await(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Process messages until the condition holds.  Return False after `seconds`, or if the job has failed
        and the grace time is over.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= deadline or (self._lost_at and time.monotonic() >= self._lost_at):
                return False
            try:
                number, message = self._inbox.get(timeout=0.05)
            except queue.Empty:
                continue
            self._note(self._ranks[number], message)
        return not self._lost_at or condition()

    def _note(self, rank: RankProcess, message: Message) -> None:
        if "ended" in message:
            rank.over = True
            if rank.failed:
                self._lose(rank)
            return
        name = next(iter(message))
        rank.seen[name] = message

    def _lose(self, rank: RankProcess) -> None:
        if not self._lost_at:
            self._lost_at = time.monotonic() + self.settings.timeout_ns / 1e9 + GRACE_S
        self._tell_all({"lost": rank.failed})
