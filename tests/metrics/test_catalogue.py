# SPDX-License-Identifier: Apache-2.0
"""The catalogue, and everything that is made of it or speaks of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hypervisor.exporter import docs as metrics_doc
from hypervisor.exporter.compat import ALIASES
from hypervisor.exporter.families import families_of
from hypervisor.exporter.labels import MAX_LABELS
from hypervisor.metrics.catalogue import CATALOGUE, NO_AGENT, SECTIONS
from tests.conftest import ROOT
from tests.metrics import full

DEPLOY = ROOT / "deploy"
NAME = re.compile(r"\b(?:gpulimit|kubevirt_vmi)_[a-z0-9_]+")
OF_OTHERS = {"kubevirt_vmi_gpu_info"}
"""Names that rules join with."""
PARTS = ("_bucket", "_sum", "_count")


def test_the_page_in_docs_is_made_of_the_catalogue() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == metrics_doc.document(), "run: python -m hypervisor.exporter.docs > docs/metrics.md"


def test_no_name_is_there_twice() -> None:
    names = [row[0] for section in SECTIONS for row in section.rows]
    assert len(names) == len(set(names)) == len(CATALOGUE)


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=lambda metric: metric.name)
def test_a_metric_follows_the_rules_of_names(metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.full_name)
    assert metric.full_name.endswith("_total") == (metric.kind == "counter")
    assert metric.help.endswith(".")
    assert len(metric.labels) <= MAX_LABELS
    assert len(set(metric.label_names)) == len(metric.labels)


def test_whatever_can_be_known_is_served() -> None:
    served = {family.name for family in families_of(full.snapshot(), has_debug_labels=False)}
    wanted = {metric.full_name for metric in CATALOGUE.values() if metric.silent != NO_AGENT}
    assert served == wanted


@pytest.mark.parametrize("has_debug_labels", [False, True])
def test_samples_bear_the_labels_that_the_catalogue_names(has_debug_labels) -> None:
    by_name = {metric.full_name: metric for metric in CATALOGUE.values()}
    for family in families_of(full.snapshot(), has_debug_labels=has_debug_labels):
        metric = by_name[family.name]
        needed = {label for label in metric.labels if not label.startswith("[")}
        for labels, _ in family.rows:
            names = [name for name, _ in labels.pairs]
            assert needed <= set(names) <= set(metric.label_names), family.name
            assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "path",
    [
        *(p for p in sorted(DEPLOY.rglob("*")) if p.suffix in (".yml", ".yaml", ".json")),
        *(p for p in sorted((ROOT / "docs").glob("*.md")) if p.name != "metrics.md"),
    ],
    ids=lambda path: path.name,
)
def test_every_name_in_deploy_and_docs_is_in_the_catalogue(path: Path) -> None:
    known = {metric.full_name for metric in CATALOGUE.values()} | OF_OTHERS
    text = re.sub(r"\b\w+:gpulimit_\w+(?::\w+)?", "", path.read_text())  # names of recording rules
    for name in NAME.findall(text):
        plain = name if name in known else re.sub(f"({'|'.join(PARTS)})$", "", name)
        is_group = name.endswith("_") and any(one.startswith(name) for one in known)
        assert plain in known or is_group, f"{path}: {name}"


def test_aliases_have_their_sources() -> None:
    names = [alias.name for aliases in ALIASES.values() for alias in aliases]
    assert len(names) == len(set(names))
    for aliases in ALIASES.values():
        for alias in aliases:
            assert alias.source in CATALOGUE, alias
