# SPDX-License-Identifier: Apache-2.0
"""Every command and option stands on a page, and the pages' links lead somewhere."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.config.settings import TABLE
from limiter import cli
from release import commands, reference
from release.version import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Help texts are folded at 80 columns; the variable is put back afterwards."""
    monkeypatch.setenv("COLUMNS", "80")


def with_sub_commands(
    name: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, nested in action.choices.items():
                yield from with_sub_commands(f"{name} {below}", nested)


def test_the_page_of_commands_is_made_of_the_command_line() -> None:
    assert reference.PAGE.read_text() == reference.document(), "run: python -m release.reference"


def test_every_option_of_every_command_has_its_line() -> None:
    page = reference.PAGE.read_text()
    for name, parser in commands.parsers().items():
        for title, one in with_sub_commands(f"gpulimit {name}", parser):
            (section,) = re.findall(
                rf"^##+ {re.escape(title)}\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL
            )
            for action in reference.arguments(one):
                assert f"| `{reference.label(action)}".replace("|U", "\\|U") in section, (title, action)
                assert reference.expanded(action) or not action.option_strings, (title, action)


def test_every_option_of_the_daemon_has_its_line() -> None:
    page = reference.PAGE.read_text()
    for name in TABLE:
        assert f"| `--{name.replace('_', '-')} " in page, name


def test_every_command_is_in_the_page() -> None:
    page = reference.PAGE.read_text()
    for name in cli.COMMANDS:
        assert f"\n## gpulimit {name}\n" in page


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings get, as GitHub makes them."""
    titles = HEADING.findall(re.sub(r"(?m)^    .*$", "", page.read_text()))
    return {"#" + re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        file = (page.parent / target) if target else page
        assert file.exists(), (target, anchor)
        assert not anchor or file.suffix != ".md" or anchor in anchors(file), (target, anchor)


def test_every_page_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for page in PAGES[2:]:
        assert f"(docs/{page.name})" in readme, page.name
