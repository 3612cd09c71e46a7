# SPDX-License-Identifier: Apache-2.0
"""The process that calls NVML: `python -m hypervisor.nvml.probe PERIOD_S SILENT_S TOTALS` prints one JSON
line per period.

It imports nothing of the daemon, and ends when its output is not read. Each card is read separately: a card
that fails or hangs is reported with its error, and the others go on. NVML is restarted periodically, since it
only counts the GPUs then. TOTALS is a JSON object of the operator's memory totals.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from typing import Any

import pynvml

from hypervisor.nvml.card_reader import CardReader
from hypervisor.nvml.fields import Fields
from hypervisor.nvml.totals import Totals
from hypervisor.nvml.xid_events import XidEvents, text

RECOUNT_S = 60.0
RETRY_S = 600.0
"""Time after which unsupported calls are made again; a new driver also causes it."""
PATIENCE_S = 1.0
"""Longest wait for a card; after it the line has the card's last row, so that other rows are not late."""
FIRST_PATIENCE_S = 5.0
"""The same for the first line: without persistence mode, the driver takes seconds per card to initialise."""
MAX_GPUS = 64


class Probe:
    """One NVML session."""

    def __init__(self, silent_s: float, totals: Totals) -> None:
        pynvml.nvmlInit()
        self._silent_s = silent_s
        self._totals = totals
        self._done = threading.Condition()
        self._cards: list[CardReader] = []
        self._has_said = False
        """True once a line has been made."""
        self._errors: Counter[str] = Counter()
        self._events = XidEvents()
        self._driver = self._driver_version()
        self._began_at = self._forgot_at = time.monotonic()

    def _driver_version(self) -> str:
        fields = Fields()
        version = text(fields.ask(pynvml.nvmlSystemGetDriverVersion) or "")
        self._errors += fields.errors
        return version

    def ask(self) -> dict[str, Any] | None:
        """Return a line's content; None while no card answers: NVML itself hangs."""
        begin = time.monotonic()
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            return {"error": f"nvmlDeviceGetCount: {error}", "code": str(error.value)}
        if count > MAX_GPUS:
            self._errors["count"] += 1
            count = MAX_GPUS
        self._have_readers(count)
        for card in self._cards:
            card.begin()
        self._wait(begin)
        with self._done:
            if self._cards and all(card.is_busy for card in self._cards):
                return None
            return self._line(begin)

    def _have_readers(self, count: int) -> None:
        for card in self._cards[count:]:
            card.end()
        del self._cards[count:]
        for index in range(len(self._cards), count):
            reader = CardReader(index, self._driver, self._totals, self._events, self._done)
            self._cards.append(reader)

    def _wait(self, begin: float) -> None:
        """Wait for all cards that are not late, and for at least one card."""
        with self._done:
            while any(card.is_busy for card in self._cards):
                waiting = [card for card in self._cards if card.is_busy]
                # A card that hangs since an earlier reading is not waited for again.
                fresh = [card for card in waiting if card.begun_at_s >= begin]
                # Half of the reader's timeout, so that the reader never takes this process for hung.
                patience_s = min(PATIENCE_S, self._silent_s / 2) if fresh else 0.0
                if not self._has_said:
                    patience_s = FIRST_PATIENCE_S
                left_s = begin + patience_s - time.monotonic()
                if left_s <= 0 and len(waiting) < len(self._cards):
                    return
                if left_s <= -self._silent_s:
                    return
                self._done.wait(max(0.05, left_s))

    def _line(self, begin: float) -> dict[str, Any]:
        rows, failed = [], []
        for card in self._cards:
            row, failure = card.report(self._silent_s)
            self._errors += card.take_errors()
            if row is not None:
                rows.append(row)
            elif failure is not None:
                failed.append(failure)
        self._has_said = True
        errors, self._errors = dict(self._errors), Counter()
        duration_s = time.monotonic() - begin
        return {"gpus": rows, "failed": failed, "errors": errors, "duration_s": duration_s}

    def pause(self, seconds: float) -> list[list[Any]]:
        """Wait for the next period; return the Xid errors that arrived meanwhile."""
        xids = self._events.wait(seconds)
        is_due = time.monotonic() - self._began_at >= RECOUNT_S
        # NVML cannot be shut down during a call.
        if is_due and not any(card.is_busy for card in self._cards):
            self._begin_anew()
        return xids

    def _begin_anew(self) -> None:
        for card in self._cards:
            card.close()
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        self._events = XidEvents()
        for card in self._cards:
            card.events = self._events
        self._began_at = time.monotonic()
        driver, before = self._driver_version(), self._driver
        if driver == before and self._began_at - self._forgot_at < RETRY_S:
            return
        self._driver, self._forgot_at = driver, self._began_at
        self._totals.forget()
        for card in self._cards:
            card.forget()
            card.driver = driver


def main(period_s: float, silent_s: float, totals: dict[str, int]) -> None:
    parent = os.getppid()
    xids: list[list[Any]] = []
    try:
        probe = Probe(silent_s, Totals(totals))
        while os.getppid() == parent:
            line = probe.ask()
            if line is not None:
                print(json.dumps({**line, "xids": xids}), flush=True)
                xids = []
            xids += probe.pause(period_s)
    except pynvml.NVMLError as error:
        print(json.dumps({"error": f"nvmlInit: {error}", "code": str(error.value)}), flush=True)


if __name__ == "__main__":
    try:
        main(float(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3]))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
