# SPDX-License-Identifier: Apache-2.0
"""Generates parts of docs/architecture.md: layers from the import contracts, folders from the tree.

python -m release.architecture            # rewrites the parts between the marks
python -m release.architecture --check    # fails if a part is out of date
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from pathlib import Path

from release.version import ROOT

DOCUMENT = ROOT / "docs" / "architecture.md"
WIDTH = 94
MARKS = "<!-- {name}: begin -->\n(.*?)<!-- {name}: end -->"
# Folders that are no Python packages.
TEXTS = {
    "csrc": "libgpulimit.so: `hooks.def` (replaced calls), `layout.h` (shared memory), "
    "`protocol.h` (bounds), `shim.h` (terms)",
    "csrc/base": "system calls, locks, points where tests stop a process",
    "csrc/container": "preload-hook: merges an image's /etc/ld.so.preload with gpulimit's",
    "csrc/daemon": "the library's side of the daemon: finding it, registration, policy, commands",
    "csrc/hooks": "the functions that programs call instead of the driver's and NVML's",
    "csrc/lookup": "replacing calls: programs' symbol lookups, the driver's own functions",
    "csrc/memory": "charged memory of a process: allocations, pools, graphs, contexts, overhead",
    "csrc/node": "the daemon's C code: hostile segments, policies, doorbells, connections",
    "csrc/path": "libgpupath.so",
    "csrc/process": "this process: its devices, the limits in force, forks",
    "csrc/quota": "the parser of quotas",
    "csrc/segment": "the tenant's counters and slots in shared memory, for library, daemon and commands",
    "csrc/state": "this process: its state, identity, log lines; the daemon it is registered with",
    "csrc/sim": "the simulated libcuda.so.1 and libnvidia-ml.so.1",
    "csrc/time": "GPU time: measuring launches, and deciding if one may go now",
    "bench": "measurements on a real card",
    "deploy": "deployment: systemd, Debian, images, Kubernetes, Prometheus, Grafana",
    "docs": "pages for users and developers",
    "tests": "tests by package; see development.md",
}
TOP = ("csrc", "limiter", "hypervisor", "release", "deploy", "bench", "tests", "docs")
DEEP = ("csrc", "limiter", "hypervisor")


def project() -> dict[str, object]:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    assert isinstance(found, dict)
    return found


def layers() -> list[list[str]]:
    """Return the daemon's layers from the top, as the import contract has them."""
    contracts = project()["contracts"]
    assert isinstance(contracts, list)
    (found,) = (contract for contract in contracts if contract["type"] == "layers")
    (package,) = found["containers"]
    return [[f"{package}.{name.strip()}" for name in row.split("|")] for row in found["layers"]]


def shown(module: str) -> str:
    """Return a module's name in the picture: a package ends in a slash."""
    path = ROOT / module.replace(".", "/")
    if not path.is_dir() and not path.with_suffix(".py").is_file():
        raise FileNotFoundError(f"pyproject.toml: the import contract names {module}, which is not there")
    return module.removeprefix("hypervisor.") + ("/" if path.is_dir() else "")


def picture() -> str:
    """Return the layers as a picture: a row may import those below it, never beside it or above."""
    edge = "+" + "-" * WIDTH + "+"
    lines = [edge]
    for row in layers():
        lines += [f"| {'   '.join(map(shown, row)):<{WIDTH - 2}} |", edge]
    inside = {name for row in layers() for name in row}
    packages = (f"hypervisor.{path.parent.name}" for path in (ROOT / "hypervisor").glob("*/__init__.py"))
    outside = sorted(shown(name) for name in packages if name not in inside)
    text = "\n".join(f"    {line}" for line in lines) + "\n"
    return text + (f"\nIn no layer: {', '.join(f'`{name}`' for name in outside)}.\n" if outside else "")


def contracts() -> str:
    """Return all contracts as a list."""
    rows = project()["contracts"]
    assert isinstance(rows, list)
    return "".join(f"- {row['name']}\n" for row in rows)


def first_line(package: Path) -> str:
    """Return the first sentence of a package's docstring."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    return re.split(r"\.(?:\s|$)|\n\n", " ".join(text.partition("\n\n")[0].split()))[0]


def folders() -> list[Path]:
    """Return the folders that the document explains, in order."""
    found: list[Path] = []
    for name in TOP:
        found.append(ROOT / name)
        if name in DEEP:
            below = (path for path in sorted((ROOT / name).iterdir()) if path.is_dir())
            found += [path for path in below if path.name[0] not in "_." and path.name != "build"]
    return [path for path in found if any(path.rglob("*.*"))]


def table() -> str:
    """Return the table of folders and their contents."""
    lines = ["| | |", "| --- | --- |"]
    for path in folders():
        name = str(path.relative_to(ROOT))
        if name not in TEXTS and not (path / "__init__.py").exists():
            raise ValueError(f"release/architecture.py: say in TEXTS what {name}/ is")
        lines.append(f"| `{name}/` | {TEXTS.get(name) or first_line(path)} |")
    return "\n".join(lines) + "\n"


def rewritten(text: str) -> str:
    """Return the document with fresh parts between the marks. Raises ValueError if a mark is missing."""
    for name, part in (("layers", picture()), ("contracts", contracts()), ("folders", table())):
        pattern = re.compile(MARKS.format(name=name), re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"docs/architecture.md has no part {name!r}")
        block = f"<!-- {name}: begin -->\n{part}<!-- {name}: end -->"
        text = pattern.sub(lambda _, block=block: block, text)  # type: ignore[misc]
    return text


def main() -> int:
    parser = argparse.ArgumentParser(prog="release.architecture", description="Renew docs/architecture.md.")
    parser.add_argument("--check", action="store_true")
    now = DOCUMENT.read_text(encoding="utf-8")
    right = rewritten(now)
    if not parser.parse_args().check:
        DOCUMENT.write_text(right, encoding="utf-8")
    elif now != right:
        print("docs/architecture.md is out of date: run `python -m release.architecture`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
