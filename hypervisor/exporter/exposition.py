# SPDX-License-Identifier: Apache-2.0
"""Renders families as text, in Prometheus' text format or OpenMetrics. Pure.

Numbers are plain decimals, never exponents, for the sake of simple readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from hypervisor.exporter.samples import Family, Value
from hypervisor.scheduler.statistics import Histogram

Form = Literal["text", "openmetrics"]
TYPES: dict[Form, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}


def render(families: Iterable[Family], form: Form) -> str:
    """Return the page."""
    lines: list[str] = []
    for family in families:
        add_family(lines, family, form)
    if form == "openmetrics":
        lines.append("# EOF")
    return "\n".join([*lines, ""])


def add_family(lines: list[str], family: Family, form: Form) -> None:
    name = family.name
    if form == "openmetrics" and family.kind == "counter":
        name = name.removesuffix("_total")
    help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    lines += (f"# HELP {name} {help_text}", f"# TYPE {name} {family.kind}")
    name, kind = family.name, family.kind
    if kind == "histogram":
        for labels, value in family.rows:
            assert isinstance(value, Histogram)
            add_histogram(lines, name, labels.text, value)
        return
    # One comprehension: a page with thousands of clients spends most of its time here.
    lines += [
        f"{name}{{{labels.text}}} {value if type(value) is int else number(value)}"
        if labels.text
        else f"{name} {number(value)}"
        for labels, value in family.rows
    ]


def add_histogram(lines: list[str], name: str, labels: str, value: Histogram) -> None:
    comma = "," if labels else ""
    total = 0
    bounds = [*(number(bound / 1e9) for bound in value.bounds_ns), "+Inf"]
    for bound, count in zip(bounds, value.counts, strict=True):
        total += count
        lines.append(f'{name}_bucket{{{labels}{comma}le="{bound}"}} {total}')
    braces = f"{{{labels}}}" if labels else ""
    lines += (f"{name}_sum{braces} {number(value.sum_ns / 1e9)}", f"{name}_count{braces} {total}")


def number(value: Value) -> str:
    """Return a number in plain decimals."""
    text = repr(value)
    if type(value) is int or not isinstance(value, float):
        return str(int(value)) if isinstance(value, int) else text
    if text.endswith(".0"):
        return text[:-2]
    if "e" in text:
        return f"{value:.12f}".rstrip("0").rstrip(".")
    if "n" in text:
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return text


def form_for(accept: str) -> Form:
    """Return the format that an Accept header prefers: OpenMetrics only where it is named, and not after the
    text.
    """
    best: tuple[float, Form] = (0.0, "text")
    for part in accept.lower().split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        weight = float(quality) if quality.replace(".", "", 1).isdecimal() else 0.0
        form: Form = "openmetrics" if kind == "application/openmetrics-text" else "text"
        if weight > best[0]:
            best = weight, form
    return best[1]
