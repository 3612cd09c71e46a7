# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md says what the import contract and the folders say."""

from __future__ import annotations

import re

import pytest

from release import architecture
from release.version import ROOT


def test_the_document_is_up_to_date() -> None:
    text = architecture.DOCUMENT.read_text(encoding="utf-8")
    assert text == architecture.rewritten(text), "run `python -m release.architecture`"


def test_the_picture_has_every_layer_in_order() -> None:
    rows = re.findall(r"^ {4}\| (.*?) *\|$", architecture.picture(), re.MULTILINE)
    assert [row.replace("/", "").split() for row in rows] == [
        [name.removeprefix("hypervisor.") for name in row] for row in architecture.layers()
    ]


def test_what_the_text_names_is_there() -> None:
    text = architecture.DOCUMENT.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:csrc|limiter|hypervisor|tests|deploy)/[\w./]*)`", text):
        assert (ROOT / name).exists(), name


def test_a_document_without_a_part_is_an_error() -> None:
    with pytest.raises(ValueError, match="layers"):
        architecture.rewritten("nothing here")
