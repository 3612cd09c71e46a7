# SPDX-License-Identifier: Apache-2.0
"""From nothing to a limited process in a minimal Debian, by the README's commands; upgrades, removal."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ..conftest import ROOT
from . import root
from .conftest import newest, quiet

SCRIPTS = Path(__file__).parent / "scripts"
TENANTS = 50

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def readme(mark: str) -> str:
    """Return the indented commands that follow a line of the README."""
    text = (ROOT / "README.md").read_text()
    match = re.search(rf"^[^\n]*{re.escape(mark)}[^\n]*\n\n((?:    [^\n]*\n|\n)+)", text, re.MULTILINE)
    assert match, mark
    return "".join(line.removeprefix("    ") for line in match[1].splitlines(keepends=True))


def check(reported: str) -> None:
    """The run that the README shows came under its quota."""
    assert re.search(r"refused", reported), reported
    assert "simulated" in reported, reported


def test_the_readme_s_commands_by_deb(deb: Path, tmp_path: Path) -> None:
    script = "cp /mnt/*.deb /tmp && cd /tmp\n" + readme("On Debian 12") + readme("Without a GPU")
    check(root.run(script.replace("\n\n", "\n"), {f"gpulimit_{version()}_amd64.deb": deb}, tmp_path))


def version() -> str:
    from release.version import version

    return version()


def test_the_readme_s_commands_by_wheel(wheels: Path, package_files: Path, tmp_path: Path) -> None:
    """Python's package index is a folder here."""
    wheel = newest(wheels, "*x86_64.whl")
    script = (
        "export PIP_NO_INDEX=1 PIP_FIND_LINKS=/mnt/wheels\ncp /mnt/*.whl /tmp && cd /tmp\n"
        + readme("Elsewhere")
        + readme("Without a GPU")
    )
    check(root.run(script, {wheel.name: wheel, "wheels": package_files}, tmp_path))


@pytest.fixture(scope="session")
def newer(deb: Path, built: Any, tmp_path_factory: Any) -> Path:
    """A later version of the package, with another build of the library."""
    folder: Path = tmp_path_factory.mktemp("newer")
    tree = folder / "tree"
    quiet(["dpkg-deb", "-R", deb, tree])
    site = tree / "usr/lib/gpulimit/lib/python3.11/site-packages"
    for path in (tree / "DEBIAN" / "control", newest(site, "libgpulimit-*.dist-info/METADATA")):
        path.write_text(re.sub(r"^Version: .*", "Version: 99.0.0", path.read_text(), flags=re.MULTILINE))
    (tree / "DEBIAN" / "md5sums").unlink()
    shutil.copy(built.library, site / "limiter" / "_lib")
    quiet(["dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, folder / "newer.deb"])
    return folder / "newer.deb"


def test_an_upgrade_under_fifty_tenants_loses_nothing(
    deb: Path,
    newer: Path,
    built: Any,
    compile_c: Any,
    tmp_path: Path,
) -> None:
    """Simulated GPUs; the daemon is ended and started as the package's scripts do where systemd runs."""
    source = ROOT / "tests" / "c" / "release" / "tenant.c"
    driver = ("-Wl,--no-as-needed", "-L", str(built.sim), "-lcuda", "-lnvidia-ml")
    tenant = compile_c(source, "-D_GNU_SOURCE", f"-I{ROOT / 'tests' / 'c'}", *driver, name="release-tenant")
    files = {
        "old.deb": deb,
        "new.deb": newer,
        "tenant": tenant,
        "upgrade.py": SCRIPTS / "upgrade.py",
    }
    script = "dpkg -i /mnt/old.deb >/dev/null\n/usr/lib/gpulimit/bin/python3 /mnt/upgrade.py 50\n"
    told = json.loads(root.run(script, files, tmp_path).splitlines()[-1])
    assert told["tenants"] == TENANTS
    assert told["ended_well"] == TENANTS, told
    assert told["lost"] == [], told
    assert told["old_library_still_mapped"] == TENANTS
    assert told["new_process_maps"] != told["old_library"]
    # The folder for containers got the new build; nobody mapped the one of before.
    assert len(told["shelf_after"]) == len(told["shelf_before"]) == 4
    assert told["shelf_after"] != told["shelf_before"]


def test_install_remove_and_purge_leave_what_they_should(deb: Path, tmp_path: Path) -> None:
    script = (SCRIPTS / "lifecycle.sh").read_text()
    told = root.run(script, {"gpulimit.deb": deb}, tmp_path)
    parts = dict(re.findall(r"^== (\w+)\n((?:(?!== ).*\n)*)", told, re.MULTILINE))
    assert parts["enabled"].split() == ["enabled"]
    assert set(parts["installed"].split()) >= {
        "/etc/gpulimit.toml",
        "/usr/lib/systemd/system/gpulimit.service",
        "/usr/bin/gpulimit",
        "/usr/lib/tmpfiles.d/gpulimit.conf",
        "/usr/share/bash-completion/completions/gpulimit",
        "/usr/share/man/man1/gpulimit-run.1.gz",
        "/usr/share/man/man8/gpulimit-daemon.8.gz",
        "/usr/share/zsh/vendor-completions/_gpulimit",
    }
    assert parts["changed"].split() == []  # using it wrote nothing into its folders
    assert set(parts["removed"].split()) == {"/etc/gpulimit.toml"}
    assert parts["purged"].split() == []


def test_the_unit_is_sound(deb: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("SKIPPED: not installed: systemd-analyze")
    quiet(["dpkg-deb", "-x", deb, tmp_path])
    unit = tmp_path / "lib/systemd/system/gpulimit.service"
    assert "ExecStart=/usr/bin/gpulimit daemon --config /etc/gpulimit.toml\n" in unit.read_text()
    unit.write_text(unit.read_text().replace("/usr/bin/gpulimit", "/usr/bin/true"))
    quiet(["systemd-analyze", "verify", "--man=no", unit])


def test_the_package_carries_what_it_needs(deb: Path, tmp_path: Path) -> None:
    quiet(["dpkg-deb", "-x", deb, tmp_path])
    bill = json.loads((tmp_path / "usr/share/doc/gpulimit/sbom.cdx.json").read_text())
    carried = {row["name"] for row in bill["components"]}
    assert {"aiohttp", "cffi", "nvidia-ml-py", "posix-ipc", "prometheus-client"} <= carried
    for path in tmp_path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert str(ROOT).encode() not in path.read_bytes(), path
