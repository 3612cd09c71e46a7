# SPDX-License-Identifier: Apache-2.0
"""The bill of materials: what is installed, in CycloneDX's form, the same each time."""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from release import lock, sbom, version
from release.version import SEMANTIC

SITE = Path(sysconfig.get_path("purelib"))


def test_it_names_what_is_installed_with_its_version() -> None:
    bill = sbom.bill(SITE)
    assert bill["metadata"]["component"]["name"] == "libgpulimit"
    rows = {row["name"]: row for row in bill["components"]}
    import aiohttp

    assert rows["aiohttp"]["version"] == aiohttp.__version__
    assert rows["aiohttp"]["purl"] == f"pkg:pypi/aiohttp@{aiohttp.__version__}"
    assert all(row["version"] and row["bom-ref"] for row in rows.values())
    references = [row["bom-ref"] for row in bill["components"]]
    assert len(references) == len(set(references))
    own = next(d for d in bill["dependencies"] if d["ref"].startswith("pkg:pypi/libgpulimit@"))
    assert {"aiohttp", "cffi"} <= {ref.partition("@")[0].rpartition("/")[2] for ref in own["dependsOn"]}
    known = {*references, bill["metadata"]["component"]["bom-ref"]}
    assert all(ref in known for row in bill["dependencies"] for ref in [row["ref"], *row["dependsOn"]])


def test_it_is_the_same_each_time() -> None:
    assert sbom.text(SITE) == sbom.text(SITE)


def test_it_follows_the_schema() -> None:
    validation = pytest.importorskip("cyclonedx.validation.json", reason="SKIPPED: no cyclonedx-python-lib")
    from cyclonedx.schema import SchemaVersion

    assert validation.JsonStrictValidator(SchemaVersion.V1_5).validate_str(sbom.text(SITE)) is None


def test_a_folder_without_gpulimit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageNotFoundError):
        sbom.bill(tmp_path)


def test_the_lock_has_what_the_base_needs() -> None:
    base = {lock.normal(need.partition(">")[0]) for need in lock.wanted()}
    assert base <= set(lock.locked()) | set(extras_not_locked())


def extras_not_locked() -> set[str]:
    """What an extra gained since the lock was made; `release.lock --check` refuses to release then."""
    return {lock.normal(need.partition(">")[0]) for need in lock.missing()}


def test_what_names_the_version_names_this_one() -> None:
    now = version.version()
    assert f"\n## {now}, " in (version.ROOT / "CHANGELOG.md").read_text()
    named = version.named()
    assert {"README.md", "deploy/helm/gpulimit/Chart.yaml", "deploy/image/kustomization.yaml"} <= set(named)
    for name, found in named.items():
        assert now in found if name.startswith("docs/") else found == {now}, name


def test_a_new_version_is_set_everywhere(tmp_path: Path) -> None:
    for name in ["pyproject.toml", *version.named()]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(version.ROOT / name, tmp_path / name)
    before = version.named(tmp_path)
    now = version.version(tmp_path)
    version.set_version("12.0.3rc1", tmp_path)
    assert version.version(tmp_path) == "12.0.3rc1"
    assert version.named(tmp_path) == {
        name: found - {now} | {"12.0.3rc1"} for name, found in before.items() if now in found
    }
    with pytest.raises(ValueError, match="MAJOR"):
        version.set_version("1.2", tmp_path)


def test_the_version_is_semantic_and_stands_once(tmp_path: Path) -> None:
    assert SEMANTIC.fullmatch(version.version())
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.0"\n')
    with pytest.raises(ValueError, match=r"MAJOR\.MINOR\.PATCH"):
        version.version(tmp_path)
    assert json.loads(sbom.text(SITE))["metadata"]["tools"]["components"][0]["version"] == version.version()
    assert sys.version_info >= (3, 11)
