# SPDX-License-Identifier: Apache-2.0
"""Checks docstrings, comments, messages and docs for wording that reads like a riddle.

    python -m release.prose            # lists every finding; fails if there is one
    python -m release.prose FILE ...   # the same for these files

A docstring begins with a noun phrase or a verb, not with a question word. Texts name the actor.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from release.version import ROOT

FOLDERS = ("hypervisor", "limiter", "release", "csrc", "docs", "deploy")
SUFFIXES = (".py", ".c", ".h", ".def", ".md")
OPENINGS = re.compile(
    r"(What|Whatever|Who|Whoever|Whose|Whom|Which|Whichever|How|Of|Where|Wherever|Whether|Why|When|Whenever)\b"
)
BANNED = re.compile(
    r"\b(whoever|whomever|(?:no|some|every|any)body|someone|anyone|everyone|anew"
    r"|(?:has|have|had|having) (?:its|their|a) say)\b",
    re.IGNORECASE,
)
C_TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(/\*.*?\*/|//[^\n]*)', re.DOTALL)
SPOKEN = ("hypervisor", "limiter", "release", "csrc")
"""Folders whose strings are messages and help texts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place with wording to change."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string statement: docstrings, and those of fields."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every other string: help texts, log lines, errors."""
    tree = ast.parse(source)
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in documented and " " in text:
                yield node.lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every comment of Python source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def c_texts(source: str, *, with_strings: bool) -> Iterator[tuple[int, str]]:
    """Yield line and text of every comment of C source and, if wanted, of every string."""
    for match in C_TEXT.finditer(source):
        if match[1] or (with_strings and match[0].startswith('"')):
            yield source.count("\n", 0, match.start()) + 1, match[0]


def texts(name: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of everything in a file that people read."""
    is_spoken = name.partition("/")[0] in SPOKEN and name != "release/prose.py"
    if name.endswith(".py"):
        yield from docstrings(source)
        yield from comments(source)
        yield from messages(source) if is_spoken else ()
    elif name.endswith(".md"):
        yield 1, source
    else:
        yield from c_texts(source, with_strings=is_spoken)


def findings(name: str, source: str) -> list[Finding]:
    """Return the wording to change in a file of this name, by line."""
    found = []
    for line, text in texts(name, source):
        found += [
            Finding(name, line + text.count("\n", 0, match.start()), f"says {match[0]!r}: name the actor")
            for match in BANNED.finditer(text)
        ]
    for line, text in docstrings(source) if name.endswith(".py") else ():
        opening = OPENINGS.match(text.lstrip())
        if opening:
            reason = f"a docstring begins with {opening[0]!r}: begin with a noun or a verb"
            found.append(Finding(name, line, reason))
    return sorted(found, key=lambda one: one.line)


def files(root: Path = ROOT) -> Iterator[Path]:
    """Yield the files that are checked, in order."""
    yield from sorted(root.glob("*.md"))
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES and not path.name.startswith("_native") and "_lib" not in path.parts:
                yield path


def read(path: Path, root: Path) -> list[Finding]:
    return findings(str(path.relative_to(root)), path.read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="release.prose", description="Check docstrings, comments, messages and docs."
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="check these files only")
    chosen = [path.absolute() for path in parser.parse_args().files] or list(files())
    shown = [row for path in chosen for row in read(path, ROOT)]
    for row in shown:
        print(row)
    return 1 if shown else 0


if __name__ == "__main__":
    sys.exit(main())
