# SPDX-License-Identifier: Apache-2.0
"""Checks docstrings, comments and docs for wording that reads like a riddle.

    python -m release.prose            # fails if a file has more findings than prose_baseline.json allows
    python -m release.prose --lower    # the same; then lowers the allowances to what is left
    python -m release.prose FILE ...   # lists every finding in these files, allowed or not

A docstring begins with a noun phrase or a verb, not with a question word. Texts name the actor. The baseline
lists findings of older files and may only shrink: a new file has none.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from release.version import ROOT

BASELINE = ROOT / "release" / "prose_baseline.json"
FOLDERS = ("hypervisor", "limiter", "release", "csrc", "docs", "deploy")
SUFFIXES = (".py", ".c", ".h", ".def", ".md")
OPENINGS = re.compile(
    r"(What|Whatever|Who|Whoever|Whose|Whom|Which|Whichever|How|Of|Where|Wherever|Whether|Why|When|Whenever)\b"
)
BANNED = re.compile(
    r"\b(whoever|whomever|nobody|somebody|everybody|anew|(?:has|have|had|having) (?:its|their|a) say)\b",
    re.IGNORECASE,
)
C_TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(/\*.*?\*/|//[^\n]*)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Finding:
    """One place with wording to change."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that stands as a statement: docstrings, and those of fields."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every comment of Python source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def c_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every comment of C source; strings are passed over."""
    for match in C_TEXT.finditer(source):
        if match[1]:
            yield source.count("\n", 0, match.start()) + 1, match[1]


def texts(name: str, source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of what a file says to its readers."""
    if name.endswith(".py"):
        yield from docstrings(source)
        yield from comments(source)
    elif name.endswith(".md"):
        yield 1, source
    else:
        yield from c_comments(source)


def findings(name: str, source: str) -> list[Finding]:
    """Return what is to be changed in a file of this name, by line."""
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


def allowed() -> dict[str, int]:
    """Return the number of findings that each older file may have."""
    found: dict[str, int] = json.loads(BASELINE.read_text(encoding="utf-8"))
    return found


def lowered(allowance: dict[str, int], counts: dict[str, int]) -> dict[str, int]:
    """Return the allowances cut down to what is left; none is raised or added."""
    left = {name: min(most, counts.get(name, 0)) for name, most in allowance.items()}
    return {name: most for name, most in sorted(left.items()) if most}


def check(lower: bool) -> list[Finding]:
    """Return the findings of every file that has more than it may; lower the baseline if asked to."""
    found = {str(path.relative_to(ROOT)): read(path, ROOT) for path in files()}
    allowance = allowed()
    if lower:
        rest = lowered(allowance, {name: len(rows) for name, rows in found.items()})
        BASELINE.write_text(json.dumps(rest, indent=1) + "\n", encoding="utf-8")
    return [row for name, rows in found.items() if len(rows) > allowance.get(name, 0) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(prog="release.prose", description="Check docstrings, comments and docs.")
    parser.add_argument("--lower", action="store_true", help="lower the baseline to what is left")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="list every finding of these")
    options = parser.parse_args()
    if options.files:
        shown = [row for path in options.files for row in read(path.absolute(), ROOT)]
    else:
        shown = check(options.lower)
    for row in shown:
        print(row)
    if shown and not options.files:
        print("release.prose: more than prose_baseline.json allows; change the new ones", file=sys.stderr)
    return 1 if shown else 0


if __name__ == "__main__":
    sys.exit(main())
