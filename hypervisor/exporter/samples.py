# SPDX-License-Identifier: Apache-2.0
"""Collects samples under the catalogue's names, in its order. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hypervisor.exporter.labels import Labels
from hypervisor.metrics.catalogue import CATALOGUE
from hypervisor.metrics.family import Metric
from hypervisor.scheduler.statistics import Histogram

Value = float | Histogram


@dataclass(frozen=True, slots=True)
class Family:
    """One metric's samples."""

    name: str
    kind: str
    help: str
    rows: list[tuple[Labels, Value]] = field(default_factory=list)


class SampleSet:
    """Collects samples; a name outside the catalogue is a programming error."""

    def __init__(self) -> None:
        self._rows: dict[str, list[tuple[Labels, Value]]] = {name: [] for name in CATALOGUE}

    def put(self, name: str, labels: Labels, value: Value | None) -> None:
        """Add a sample, unless its value is None."""
        if value is not None:
            self._rows[name].append((labels, value))

    def put_all(self, labels: Labels, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if value is not None:
                self._rows[name].append((labels, value))

    def put_each(self, name: str, labels: Labels, label: str, values: Mapping[str, float]) -> None:
        """Add a sample for each value of one more label."""
        for key, value in values.items():
            self._rows[name].append((labels.plus(label, key), value))

    def families(self) -> list[Family]:
        """Return the families that have samples."""
        return [family_of(CATALOGUE[name], rows) for name, rows in self._rows.items() if rows]


def family_of(metric: Metric, rows: list[tuple[Labels, Value]]) -> Family:
    return Family(metric.full_name, metric.kind, metric.help, rows)
