# SPDX-License-Identifier: Apache-2.0
"""Identifies the processes on this node's cards by /proc, and computes the share of each on its card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hypervisor.host.names import Names
from hypervisor.top.model import ProcessView
from hypervisor.top.share_window import Spent
from hypervisor.top.text import clean

PROC = Path("/proc")
MAX_COMMAND_BYTES = 512


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process on a card, before its /proc entries are read."""

    pid: int
    card: str
    card_index: int | None = None
    tenant: str = ""
    name: str = ""
    memory_bytes: float | None = None
    spent_ns: int | None = None


class ProcessReader:
    """Reads processes from the /proc at `proc`, and keeps the previous counters to compute shares."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self.can_see_them = True
        """True if the pids belong to this pid namespace. If not, /proc describes other processes."""
        self._names = Names()
        self._spent: Spent[tuple[int, str]] = Spent()

    def look(self, held: Iterable[ProcessUse], *, now_ns: int) -> tuple[ProcessView, ...]:
        """Return the processes. A process that both NVML and the usage segments report appears once.

        `now_ns` is the time at which the usage segments were read.
        """
        rows = merged(held)
        shares = self._spent.shares(
            now_ns, {key: row.spent_ns for key, row in rows.items() if row.spent_ns is not None}
        )
        return tuple(self._process(row, shares.get(key)) for key, row in rows.items())

    def _process(self, row: ProcessUse, got: float | None) -> ProcessView:
        return ProcessView(
            pid=row.pid,
            card=row.card,
            card_index=row.card_index,
            tenant=row.tenant,
            user=self._user(row.pid) if self.can_see_them else "",
            command=(self.can_see_them and self._command(row.pid)) or row.name,
            memory_bytes=row.memory_bytes,
            got=got,
        )

    def _user(self, pid: int) -> str:
        try:
            return clean(self._names.user((self._proc / str(pid)).stat().st_uid))
        except OSError:
            return ""

    def _command(self, pid: int) -> str:
        try:
            with (self._proc / str(pid) / "cmdline").open("rb") as file:
                raw = file.read(MAX_COMMAND_BYTES)
        except OSError:
            return ""
        return clean(" ".join(raw.decode(errors="replace").split("\0")).strip(), MAX_COMMAND_BYTES)


def merged(held: Iterable[ProcessUse]) -> dict[tuple[int, str], ProcessUse]:
    """Return the rows merged by process and card. Each field comes from the first row that has it."""
    rows: dict[tuple[int, str], ProcessUse] = {}
    for row in held:
        key = row.pid, row.card
        before = rows.get(key)
        rows[key] = row if before is None else joined(before, row)
    return rows


def joined(one: ProcessUse, other: ProcessUse) -> ProcessUse:
    return replace(
        one,
        card_index=other.card_index if one.card_index is None else one.card_index,
        tenant=one.tenant or other.tenant,
        name=one.name or other.name,
        memory_bytes=other.memory_bytes if one.memory_bytes is None else one.memory_bytes,
        spent_ns=other.spent_ns if one.spent_ns is None else one.spent_ns,
    )


def with_tenants(held: Iterable[ProcessUse], tenants: dict[int, str]) -> Iterator[ProcessUse]:
    """Yield rows with the tenants of their processes."""
    for row in held:
        yield replace(row, tenant=row.tenant or tenants.get(row.pid, ""))
