# SPDX-License-Identifier: Apache-2.0
"""Elements of the catalogue: a family of samples, and a section of families with common labels. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PREFIX = "gpulimit_"
Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One family."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    source: str
    """Source of the value."""
    section: str = ""
    silent: str = ""

    @property
    def full_name(self) -> str:
        """Name on the page, with prefix."""
        return self.name if self.name.startswith("kubevirt_") else PREFIX + self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.strip("[]") for label in self.labels)


@dataclass(frozen=True, slots=True)
class Section:
    """Families with common labels. `rows`: (name, kind, further labels, help, source)."""

    title: str
    about: str
    labels: tuple[str, ...]
    rows: tuple[tuple[str, Kind, tuple[str, ...], str, str], ...]
    silent: str = ""
    exceptions: dict[str, str] = field(default_factory=dict)
    """Conditions under which single rows are silent, by name."""

    def metrics(self) -> tuple[Metric, ...]:
        return tuple(
            Metric(
                name,
                kind,
                (*self.labels, *labels),
                text,
                source,
                self.title,
                self.exceptions.get(name, self.silent),
            )
            for name, kind, labels, text, source in self.rows
        )
