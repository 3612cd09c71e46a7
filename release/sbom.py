# SPDX-License-Identifier: Apache-2.0
"""Writes a bill of materials (CycloneDX 1.5, JSON) of a folder of Python packages, from their metadata.

    python -m release.sbom [SITE-PACKAGES] [--out FILE]    # the running Python's own, without an argument

The same packages give the same bytes: no random serial number, and the date of the release.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import sysconfig
import time
from importlib.metadata import Distribution, PackageNotFoundError, distributions
from pathlib import Path
from typing import Any

from limiter.about import DISTRIBUTION
from release.lock import normal
from release.version import epoch_s, version

OWN = DISTRIBUTION


def installed(site: Path) -> dict[str, Distribution]:
    """Return the packages in a folder by name, gpulimit included.  Raises PackageNotFoundError without it."""
    found = {normal(d.metadata["Name"]): d for d in distributions(path=[str(site)])}
    if OWN not in found:
        raise PackageNotFoundError(f"{OWN} is not in {site}")
    return found


def needs(distribution: Distribution, known: dict[str, Distribution]) -> list[str]:
    """Return which of the packages here another one needs, whatever the condition."""
    names = {normal(re.split(r"[^\w.-]", text)[0]) for text in distribution.requires or []}
    return sorted(names & known.keys())


def reference(name: str, known: dict[str, Distribution]) -> str:
    return f"pkg:pypi/{name}@{known[name].version}"


def field(distribution: Distribution, name: str) -> str:
    """Return a line of the metadata; empty if it is not there."""
    return distribution.metadata[name].strip() if name in distribution.metadata else ""


def licence(distribution: Distribution) -> list[dict[str, Any]]:
    """Return the licence as CycloneDX has it: an SPDX expression where the package gives one."""
    expression = field(distribution, "License-Expression")
    if expression:
        return [{"expression": expression}]
    text = field(distribution, "License").splitlines()
    if text and len(text[0]) < 60:
        return [{"license": {"name": text[0]}}]
    classes = [c for c in distribution.metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    return [{"license": {"name": c.rpartition(":: ")[2]}} for c in classes]


def component(name: str, known: dict[str, Distribution]) -> dict[str, Any]:
    distribution = known[name]
    made = {
        "type": "application" if name == OWN else "library",
        "bom-ref": reference(name, known),
        "name": name,
        "version": distribution.version,
        "purl": reference(name, known),
    }
    summary = field(distribution, "Summary")
    if summary:
        made["description"] = summary
    licences = licence(distribution)
    return made | ({"licenses": licences} if licences else {})


def libraries(site: Path) -> list[dict[str, Any]]:
    """Return gpulimit's own compiled files, with their hashes."""
    rows = []
    for path in sorted((site / "limiter").rglob("*.so*")):
        name = str(path.relative_to(site))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        rows.append(
            {"type": "file", "bom-ref": name, "name": name, "hashes": [{"alg": "SHA-256", "content": digest}]}
        )
    return rows


def bill(site: Path) -> dict[str, Any]:
    """Return the bill of materials of a folder."""
    known = installed(site)
    date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_s()))
    links = [
        {"ref": reference(n, known), "dependsOn": [reference(d, known) for d in needs(known[n], known)]}
        for n in sorted(known)
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": date,
            "tools": {"components": [{"type": "application", "name": "release.sbom", "version": version()}]},
            "component": component(OWN, known) | {"components": libraries(site)},
        },
        "components": [component(name, known) for name in sorted(known) if name != OWN],
        "dependencies": links,
    }


def text(site: Path) -> str:
    return json.dumps(bill(site), indent=1, sort_keys=True) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="release.sbom", description="Write a bill of materials.")
    parser.add_argument("site", nargs="?", type=Path, default=Path(sysconfig.get_path("purelib")))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    try:
        made = text(options.site)
    except PackageNotFoundError as error:
        print(f"release.sbom: {error}", file=sys.stderr)
        return 1
    if options.out:
        options.out.write_text(made, encoding="utf-8")
    else:
        sys.stdout.write(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
