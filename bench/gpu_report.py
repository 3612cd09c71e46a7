# SPDX-License-Identifier: Apache-2.0
"""Converts pytest's reports of a run on a real card into a JSON file and a text file.

    python bench/gpu_report.py --out bench/results/gpu together.xml alone.xml

writes gpu.json and gpu.txt in bench/results.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "triton", "jax", "cupy", "cupy-cuda12x", "cupy-cuda13x", "numpy", "nvidia-ml-py")


def card() -> dict[str, str]:
    """Return the first card's properties by nvidia-smi."""
    fields = ("name", "driver_version", "memory.total")
    if os.environ.get("GPULIMIT_TEST_GPU") == "sim":
        return dict.fromkeys(fields, "SIMULATED, a rehearsal")
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return dict.fromkeys(fields, "unknown")
    return dict(zip(fields, (field.strip() for field in text.split(",")), strict=True))


def versions() -> dict[str, str]:
    """Return the versions of the installed packages."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def value(text: str) -> Any:
    """Return a property's text converted back to its original value."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def tests(report: Path) -> list[dict[str, Any]]:
    """Return the rows of one report of pytest."""
    rows = []
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own pytest wrote it
        found = next((c for c in case if c.tag in ("failure", "error", "skipped")), None)
        outcome = {None: "passed", "skipped": "skipped"}.get(found if found is None else found.tag, "failed")
        message = "" if found is None else (found.get("message") or "") + "\n" + (found.text or "")
        figures = {p.get("name", ""): value(p.get("value", "")) for p in case.iter("property")}
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        rows.append({"test": name, "outcome": outcome, "seconds": float(case.get("time", 0)), "figures": figures, "message": message.strip()[:6000]})
    return rows


def table(result: dict[str, Any]) -> str:
    """Return the result as a text table."""
    lines = [f"{result['card']['name']}, driver {result['card']['driver_version']}, commit {result['commit']}, {result['date']}"]
    lines += [result["command"], ", ".join(f"{k} {v}" for k, v in result["versions"].items())]
    count = {o: sum(t["outcome"] == o for t in result["tests"]) for o in ("passed", "failed", "skipped")}
    lines += [", ".join(f"{n} {o}" for o, n in count.items()) + f" in {result['seconds']} s", ""]
    for test in result["tests"]:
        lines.append(f"{test['outcome']:8} {test['seconds']:6.1f} s  {test['test']}")
        for name, figures in test["figures"].items():
            text = "  ".join(f"{k}={v}" for k, v in figures.items()) if isinstance(figures, dict) else str(figures)
            lines.append(f"{'':20} {name}: {text}")
        if test["outcome"] != "passed":
            lines += [f"{'':20} | {line}" for line in test["message"].splitlines()[:40]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both files and print the second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--command", default="")
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="path of both files without suffix")
    parser.add_argument("reports", type=Path, nargs="+")
    options = parser.parse_args()
    result = {
        "date": time.strftime("%Y-%m-%d"),
        "commit": options.commit,
        "command": options.command,
        "card": card(),
        "versions": versions(),
        "seconds": options.seconds,
        "tests": [row for report in options.reports if report.exists() for row in tests(report)],
    }
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    options.out.with_suffix(".txt").write_text(table(result))
    print(table(result), end="")


if __name__ == "__main__":
    main()
