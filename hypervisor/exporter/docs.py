# SPDX-License-Identifier: Apache-2.0
"""Prints docs/metrics.md from the catalogue: `python -m hypervisor.exporter.docs > docs/metrics.md`."""

from __future__ import annotations

from hypervisor.exporter.compat import ALIASES, Alias
from hypervisor.metrics.catalogue import CATALOGUE, SECTIONS
from hypervisor.metrics.family import Metric, Section

HEAD = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `python -m hypervisor.exporter.docs`; do not edit. -->
# Metrics

    curl http://127.0.0.1:9402/metrics

The daemon serves `/metrics` on port 9402 (`--metrics-addr`), in Prometheus' text format, or in OpenMetrics if the
client accepts it, with gzip if the client accepts it. `/healthz` answers while the daemon lives. `/readyz` names the
components that have not worked recently. Rules, alerts and a dashboard are in `deploy/prometheus` and
`deploy/grafana`.

- A value that is not known is absent: never 0, never a placeholder. A component that fails hides no other.
- A series ends with its object, for example with its process, at the next reading (`--nvml-interval`, 1 s). The last
  values of an unreadable usage segment are served for `--metrics-stale-ttl`.
- Values of cards and of tenants are different families, so a sum over tenants never counts a card twice.
- A scrape reads a snapshot, and calls neither the driver nor the scheduler. A child process calls NVML. If the driver
  hangs, the daemon kills that process, `gpulimit_nvml_up` is 0, and the other metrics go on.
- A label in brackets is only there if its value is known, or (`client_id`, `host_pid`) with
  `--metrics-debug-labels on`.
- Label values have no control characters, and at most 256 bytes.
"""
ALIAS_HEAD = """
## Other exporters' names

`--metrics-compat NAME,…` also serves the same values under these names. The labels are as above.
"""
RATIO = """
`--metrics-ratio-file` is the file of k8s-vgpu-monitor: one number, the number of tenants that share a card. Lines may
also set it for a card or a pod: `GPU-3430f778-…=4`, `0=4`, `namespace/pod=2`.
"""


def cell(text: str) -> str:
    return text.replace("|", r"\|")


def row_of(metric: Metric) -> str:
    extra = metric.labels[len(section_of(metric).labels) :]
    labels = f"{{{', '.join(extra)}}}" if extra else ""
    return (
        f"| `{metric.full_name}`{' ' + cell(labels) if labels else ''} | {metric.kind} | "
        f"{cell(metric.help)} | {cell(metric.source)} |"
    )


def section_of(metric: Metric) -> Section:
    return next(section for section in SECTIONS if section.title == metric.section)


def part(section: Section) -> list[str]:
    """Return a section's lines."""
    labels = ", ".join(f"`{label}`" for label in section.labels)
    silent = f" Silent while {section.silent}." if section.silent else ""
    lines = ["", f"## {section.title}", "", f"{section.about}{silent}"]
    if labels:
        lines += ["", f"Labels: {labels}."]
    lines += ["", "| name | type | meaning | from |", "| --- | --- | --- | --- |"]
    return [*lines, *(row_of(CATALOGUE[name]) for name, *_ in section.rows)]


def alias_row(alias: Alias) -> str:
    factor = {1.0: "", 100.0: " x 100", 1e-6: " / 10^6"}.get(alias.scale, " / 2^20")
    label = f'{{{alias.label[0]}="{alias.label[1]}"}}' if alias.label is not None else ""
    more = "; with `gpu` and `instance`" if alias.names_card else ""
    return f"| `{alias.name}` | `{CATALOGUE[alias.source].full_name}{label}`{factor}{more} |"


def document() -> str:
    """Return the whole page."""
    lines = [HEAD.rstrip("\n")]
    for section in SECTIONS:
        lines += part(section)
    lines.append(ALIAS_HEAD.rstrip("\n"))
    for exporter, aliases in ALIASES.items():
        lines += ["", f"### {exporter}", "", "| name | is |", "| --- | --- |", *map(alias_row, aliases)]
    return "\n".join([*lines, RATIO.rstrip("\n"), ""])


if __name__ == "__main__":
    print(document(), end="")
