# SPDX-License-Identifier: Apache-2.0
"""Takes over listed values of a guest's GPUs from its page, within bounds. Pure.

Everything else on the page, above all the guest's claims about its identity, is dropped and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypervisor.guests.metric_names import BOUNDS, DIALECTS, MIB, Dialect, MetricRule
from hypervisor.metrics.snapshot import GuestGpu
from hypervisor.scraper.limits import Limits
from hypervisor.scraper.parser import Page

LIMITS = Limits(page_bytes=1 << 20, lines=20_000, line_bytes=8192, names=1_000, series=5_000, value_bytes=256)
"""Bounds of a guest's page. They suffice for about thirty GPUs with all of dcgm-exporter's metrics."""
MAX_GPUS = 32
UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,79}")
BARE_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
INDEX = re.compile(r"[0-9]{1,3}")
MAX_INDEX = 1000
MAX_STATUS = 9999


@dataclass(frozen=True, slots=True)
class GuestPage:
    """One page."""

    gpus: tuple[GuestGpu, ...] = ()
    status: float | None = None
    """Status of gpulimit's agent: 0, or NVML's error number. None for other exporters."""
    boot_id: str = ""
    dropped: Counter[str] = field(default_factory=Counter)

    def is_of_another_machine(self, before: GuestPage) -> bool:
        """True if this page cannot come from the machine of `before`, or not from the same start of it."""
        if self.boot_id and before.boot_id:
            return self.boot_id != before.boot_id
        return self.has_other_gpus(before)

    def has_other_gpus(self, before: GuestPage) -> bool:
        """True if both pages name GPUs and have none in common: a restart alone does not explain that."""
        ours, theirs = ({gpu.uuid for gpu in reading.gpus} for reading in (self, before))
        return bool(ours and theirs) and ours.isdisjoint(theirs)

    def is_same_start(self, known: GuestPage) -> bool:
        """True if this page and `known` come from one start of a machine: same boot id, else same GPUs."""
        if self.boot_id or known.boot_id:
            return self.boot_id == known.boot_id
        return bool({gpu.uuid for gpu in self.gpus} & {gpu.uuid for gpu in known.gpus})


def reading_of(page: Page) -> GuestPage:
    """Return the values that are taken over from a page."""
    return Reader(page).read()


class Reader:
    """One page being read."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._dropped = Counter(page.dropped)
        self._values: dict[str, dict[str, float]] = {}
        self._about: dict[str, dict[str, str]] = {}
        """Index and title by UUID, if the page has them."""

    def read(self) -> GuestPage:
        for dialect in DIALECTS:
            if not self._page.samples.keys().isdisjoint(dialect.names):
                self._take(dialect)
        listed = frozenset().union(*(dialect.names for dialect in DIALECTS))
        others = sum(len(s) for name, s in self._page.samples.items() if name not in listed)
        if others:
            self._dropped["not_listed"] += others
        return GuestPage(
            gpus=tuple(self._gpus()),
            status=self._status(),
            boot_id=next(
                (labels.get("boot_id", "") for labels, _ in self._page.of("gpulimit_guest_agent_info")), ""
            ),
            dropped=self._dropped,
        )

    def _take(self, dialect: Dialect) -> None:
        for labels, _ in self._page.of(dialect.about):
            self._uuid(dialect, labels)
        for labels, value in self._page.of(dialect.numbers):
            uuid = self._uuid(dialect, labels)
            if uuid and 0 <= value < MAX_INDEX:
                self._about[uuid].setdefault("index", str(int(value)))
        for family, rows in dialect.rows.items():
            for labels, value in self._page.of(family):
                row = next((r for r in rows if fits(r, labels)), None)
                uuid = self._uuid(dialect, labels) if row else ""
                if row and uuid:
                    self._put(uuid, row.name, value * row.scale)
        self._add_up(dialect)

    def _uuid(self, dialect: Dialect, labels: dict[str, str]) -> str:
        """Return the UUID of a series' GPU; empty, and count the series as dropped, if it is unusable."""
        if dialect.instance and labels.get(dialect.instance):
            self._dropped["mig"] += 1
            return ""
        uuid = labels.get(dialect.uuid, "")
        if BARE_UUID.fullmatch(uuid):
            uuid = f"GPU-{uuid}"  # NVML's form
        if not UUID.fullmatch(uuid):
            self._dropped["label"] += 1
            return ""
        if uuid not in self._about:
            if len(self._about) >= MAX_GPUS:
                self._dropped["too_many_gpus"] += 1
                return ""
            self._about[uuid] = {}
        about = self._about[uuid]
        for key, label in (("index", dialect.index), ("title", dialect.title)):
            if labels.get(label):
                about.setdefault(key, labels[label])
        return uuid

    def _put(self, uuid: str, name: str, value: float) -> None:
        low, high = BOUNDS[name]
        if not low <= value <= high:  # also true for NaN
            self._dropped["range"] += 1
        else:
            self._values.setdefault(uuid, {}).setdefault(name, value)

    def _add_up(self, dialect: Dialect) -> None:
        """Compute the total memory of GPUs whose exporter only reports the parts."""
        if not dialect.parts:
            return
        used, *rest = dialect.parts
        sums: dict[str, float] = {}
        for family in (used, *rest):
            for labels, value in self._page.of(family):
                uuid = labels.get(dialect.uuid, "")
                if uuid in self._values and not labels.get(dialect.instance) and value >= 0:
                    sums[uuid] = sums.get(uuid, 0.0) + value * MIB
        has_free = {labels.get(dialect.uuid) for labels, _ in self._page.of(rest[0])}
        for uuid, total in sums.items():
            if uuid in has_free and "memory_total_bytes" not in self._values[uuid]:
                self._put(uuid, "memory_total_bytes", total)

    def _gpus(self) -> Iterator[GuestGpu]:
        """Yield the GPUs that have values. A GPU without an index gets the next free one, in page order."""
        taken = {a["index"] for a in self._about.values() if INDEX.fullmatch(a.get("index", ""))}
        free = (n for n in range(2 * MAX_GPUS) if str(n) not in taken)
        for uuid, values in self._values.items():
            about = self._about[uuid]
            index = about.get("index", "")
            number = int(index) if INDEX.fullmatch(index) else next(free)
            yield GuestGpu(number, uuid, about.get("title", ""), values)

    def _status(self) -> float | None:
        for _, value in self._page.of("gpulimit_guest_agent_status"):
            if 0 <= value <= MAX_STATUS:
                return value
            self._dropped["range"] += 1
        return None


def fits(row: MetricRule, labels: dict[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in row.labels)
