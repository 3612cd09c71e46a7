# SPDX-License-Identifier: Apache-2.0
"""Renders the newest snapshot in the format that a scraper accepts. A page is rendered once per snapshot."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import Metric as ClientMetric
from prometheus_client.registry import Collector

from hypervisor.exporter.compat import aliases_of
from hypervisor.exporter.exposition import TYPES, Form, form_for, number, render
from hypervisor.exporter.families import families_of
from hypervisor.exporter.labels import NONE
from hypervisor.exporter.samples import Family
from hypervisor.metrics.snapshot import Snapshot
from hypervisor.scheduler.statistics import Histogram

GZIP_LEVEL = 1


class Exporter(Collector):
    """Holds a snapshot; `publish` replaces it atomically.

    It is also a collector of prometheus_client. The page is rendered without that library, which is faster
    and gives plain decimals.
    """

    def __init__(self, *, has_debug_labels: bool = False, compat: Sequence[str] = ()) -> None:
        self._has_debug_labels = has_debug_labels
        self._compat = tuple(compat)
        self.snapshot = Snapshot()
        self._families: list[Family] = []
        self._pages: dict[tuple[Form, bool], bytes] = {}
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)

    def publish(self, snapshot: Snapshot) -> None:
        """Serve another snapshot from now on. Work that all scrapes share is done here, once."""
        families = families_of(snapshot, has_debug_labels=self._has_debug_labels)
        self.snapshot = snapshot
        self._families = [*families, *aliases_of(families, self._compat, node=snapshot.node)]
        self._pages = {}

    def families(self) -> list[Family]:
        """Return all families of this daemon."""
        return self._families

    def page(self, accept: str, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
        """Return body and headers for the formats that a scraper accepts."""
        form, is_packed = form_for(accept), "gzip" in accept_encoding.lower()
        body = self._pages.get((form, is_packed))
        if body is None:
            body = self._pages.get((form, False)) or self._write(form)
            self._pages[form, False] = body
            if is_packed:
                body = self._pages[form, True] = packed(body)
        headers = {"Content-Type": TYPES[form], "Vary": "Accept, Accept-Encoding"}
        if is_packed:
            headers["Content-Encoding"] = "gzip"
        return body, headers

    def _write(self, form: Form) -> bytes:
        return render([*self.families(), *process_families(self._process)], form).encode()

    def collect(self) -> Iterator[ClientMetric]:
        """Yield the families for a registry of prometheus_client."""
        for family in self.families():
            yield client_metric(family)


def packed(body: bytes) -> bytes:
    target = io.BytesIO()
    with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=GZIP_LEVEL, mtime=0) as file:
        file.write(body)
    return target.getvalue()


def process_families(registry: CollectorRegistry) -> Iterable[Family]:
    """Yield the daemon's own memory, CPU time and files, as every Prometheus client does."""
    for metric in registry.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        rows = [(NONE, sample.value) for sample in metric.samples if sample.name == name]
        yield Family(name, metric.type, metric.documentation, [*rows])


def client_metric(family: Family) -> ClientMetric:
    is_counter = family.kind == "counter"
    metric = ClientMetric(
        family.name.removesuffix("_total") if is_counter else family.name, family.help, family.kind
    )
    for labels, value in family.rows:
        if not isinstance(value, Histogram):
            metric.add_sample(family.name, dict(labels.pairs), float(value))
            continue
        total = 0
        bounds = [*(number(bound / 1e9) for bound in value.bounds_ns), "+Inf"]
        for bound, count in zip(bounds, value.counts, strict=True):
            total += count
            metric.add_sample(f"{family.name}_bucket", {**dict(labels.pairs), "le": bound}, total)
        metric.add_sample(f"{family.name}_sum", dict(labels.pairs), value.sum_ns / 1e9)
        metric.add_sample(f"{family.name}_count", dict(labels.pairs), total)
    return metric
