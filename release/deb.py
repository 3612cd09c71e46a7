# SPDX-License-Identifier: Apache-2.0
"""Builds the Debian package for Debian 12 from a wheel.

    python -m release.deb WHEEL [--out dist]
    python -m release.deb WHEEL --wheels DIR     # filled by `release.lock --download DIR`: asks no index

The packages that gpulimit needs are carried in /usr/lib/gpulimit, in the versions of requirements.lock here:
those of Debian 12 (aiohttp 3.8, cffi 1.15, nvidia-ml-py 11, prometheus-client 0.16) are older than what it
needs.  Python is Debian's own, 3.11.  The same wheel and lock give the same bytes.  Needs dpkg-deb, and a
Python 3.11 to compile for.
"""

from __future__ import annotations

import argparse
import email.utils
import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release import pages, sbom
from release.lock import LOCK, PYTHON, missing, platform_options
from release.version import ROOT, epoch_s
from release.wheels import CannotBuild

HOME = Path("usr/lib/gpulimit")
SITE = HOME / "lib" / f"python{PYTHON}" / "site-packages"
DEBIAN = ROOT / "deploy" / "debian"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CONFIG = "etc/gpulimit.toml"
START = f"""#!/{HOME}/bin/python3 -I
# SPDX-License-Identifier: Apache-2.0
import sys

from limiter.cli import main

sys.exit(main())
"""
CONTROL = """Package: gpulimit
Version: {version}
Architecture: {arch}
Maintainer: gpulimit developers <gpulimit@localhost>
Installed-Size: {size}
Depends: python3 (>= {python}~), python3 (<< {next_python}~), libc6 (>= 2.28), init-system-helpers (>= 1.54~)
Section: admin
Priority: optional
Description: memory and compute quotas for processes that share one NVIDIA GPU
 A library preloaded into CUDA programs gives each tenant a hard ceiling on
 device memory and on GPU time.  A daemon keeps quotas where tenants cannot
 change them, divides GPU time between tenants, and serves metrics.
 .
 Carries the Python packages that it needs in /usr/lib/gpulimit.
"""
CHANGELOG = """gpulimit ({version}) unstable; urgency=medium

  * See /usr/share/doc/gpulimit/CHANGELOG.md.

 -- gpulimit developers <gpulimit@localhost>  {date}
"""


def facts(wheel: Path) -> tuple[str, str]:
    """Return Debian's version and architecture of a wheel.  Raises CannotBuild if it is none of ours."""
    pattern = rf"{sbom.OWN}-([\w.]+)-cp311-abi3-manylinux_\w+?_(x86_64|aarch64)\.whl"
    match = re.fullmatch(pattern, wheel.name)
    if not match:
        raise CannotBuild(f"{wheel} is no wheel of gpulimit for Linux; `make wheels` makes them")
    return re.sub(r"(\d)(a|b|rc)(\d)", r"\1~\2\3", match[1]), match[2]


def check_tools() -> None:
    """Raise CannotBuild where something is missing."""
    if sys.version_info[:2] != tuple(map(int, PYTHON.split("."))):
        raise CannotBuild(
            f"needs Python {PYTHON}, that of Debian 12, to compile for it; this is {sys.version.split()[0]}"
        )
    if shutil.which("dpkg-deb") is None:
        raise CannotBuild("no dpkg-deb: apt-get install dpkg-dev")
    for need in missing():
        raise CannotBuild(f"release/requirements.lock lacks {need}: run `python -m release.lock`")


def install(root: Path, wheel: Path, arch: str, wheels: Path | None) -> None:
    """Fill /usr/lib/gpulimit: a virtual environment of Debian's Python that names nothing of this machine."""
    site = root / SITE
    pip = [sys.executable, "-m", "pip", "-q", "install", "--no-deps", "--no-compile", "--target", str(site)]
    options = platform_options(arch)
    if wheels is not None:
        options += ["--no-index", "--find-links", str(wheels)]
    subprocess.run([*pip, *options, "--require-hashes", "-r", str(LOCK)], check=True)
    subprocess.run([*pip, *options, "--upgrade", str(wheel)], check=True)
    shutil.rmtree(site / "bin", ignore_errors=True)
    for name in ("direct_url.json", "REQUESTED", "INSTALLER"):
        for path in site.glob(f"*.dist-info/{name}"):
            path.unlink()
    bin_folder = root / HOME / "bin"
    bin_folder.mkdir()
    (bin_folder / "python3").symlink_to("/usr/bin/python3")
    executable(bin_folder / "gpulimit", START)
    (root / HOME / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/gpulimit").symlink_to("../lib/gpulimit/bin/gpulimit")
    # Compiled here, and never looked at again: root's daemon leaves no files behind that dpkg does not know.
    compiling = [
        "-q",
        "-f",
        "-j",
        "2",
        "--invalidation-mode",
        "unchecked-hash",
        "-s",
        str(root),
        "-p",
        "/",
        str(site),
    ]
    subprocess.run([sys.executable, "-m", "compileall", *compiling], check=True)


def executable(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def packed(path: Path, text: str) -> None:
    """Write a .gz without the time of packing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def unit() -> str:
    """Return the systemd unit, for the paths of the package."""
    text = (ROOT / "deploy/systemd/gpulimit.service").read_text(encoding="utf-8")
    text, count = re.subn(
        r"(#[^\n]*\n)?ExecStart=[^\n]*", f"ExecStart=/usr/bin/gpulimit daemon --config /{CONFIG}", text
    )
    if count != 1:
        raise CannotBuild("deploy/systemd/gpulimit.service has no ExecStart, or several")
    return text


def place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def integrate(root: Path) -> None:
    """Add what the system reads: unit, tmpfiles, configuration, man pages, completions."""
    service = root / "lib/systemd/system/gpulimit.service"
    service.parent.mkdir(parents=True)
    service.write_text(unit(), encoding="utf-8")
    place(DEBIAN / "gpulimit.conf", root / "usr/lib/tmpfiles.d/gpulimit.conf")
    place(DEBIAN / "gpulimit.toml", root / CONFIG)
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        pages.write(made)
        for page in sorted((made / "man").iterdir()):
            section = page.suffix.removeprefix(".")
            packed(root / f"usr/share/man/man{section}/{page.name}.gz", page.read_text(encoding="utf-8"))
        place(made / "bash/gpulimit", root / "usr/share/bash-completion/completions/gpulimit")
        place(made / "zsh/_gpulimit", root / "usr/share/zsh/vendor-completions/_gpulimit")


def document(root: Path, version: str) -> None:
    """Add what people read, and the bill of materials."""
    doc = root / "usr/share/doc/gpulimit"
    site = root / SITE
    packed(doc / "changelog.gz", CHANGELOG.format(version=version, date=email.utils.formatdate(epoch_s())))
    for path in [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]:
        place(path, doc / path.relative_to(ROOT))
    for folder in ("prometheus", "grafana"):
        shutil.copytree(ROOT / "deploy" / folder, doc / "examples" / folder)
    (doc / "sbom.cdx.json").write_text(sbom.text(site), encoding="utf-8")
    (doc / "copyright").write_text(copyright_file(site), encoding="utf-8")


def copyright_file(site: Path) -> str:
    """Return Debian's copyright file: ours, and the licence of everything carried."""
    known = sbom.installed(site)
    lines = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/",
        "Upstream-Name: gpulimit",
        "",
        "Files: *",
        "Copyright: 2026 the gpulimit developers",
        "License: Apache-2.0",
        " On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.",
        "",
        f"Comment: In /{SITE} are, with their licence files in NAME.dist-info:",
    ]
    for name in sorted(known):
        if name != sbom.OWN:
            said = [row.get("expression") or row["license"]["name"] for row in sbom.licence(known[name])]
            lines.append(f" {name} {known[name].version}: {', '.join(said) or 'see its files'}")
    return "\n".join(lines) + "\n"


def control(root: Path, version: str, arch: str) -> None:
    """Add the control files: what it needs, its scripts, its configuration file, checksums."""
    folder = root / "DEBIAN"
    files = sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())
    size = sum(p.stat().st_size for p in files) // 1024 + 1
    major, minor = PYTHON.split(".")
    folder.mkdir()
    following = f"{major}.{int(minor) + 1}"
    text = CONTROL.format(
        version=version, arch=ARCHITECTURES[arch], size=size, python=PYTHON, next_python=following
    )
    (folder / "control").write_text(text)
    (folder / "conffiles").write_text(f"/{CONFIG}\n")
    for name in ("postinst", "prerm", "postrm"):
        executable(folder / name, (DEBIAN / name).read_text(encoding="utf-8"))
    sums = subprocess.run(
        ["md5sum", *(str(p.relative_to(root)) for p in files)],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (folder / "md5sums").write_text(sums)


def tidy(root: Path) -> None:
    """Give every file the mode that its kind has, whatever the builder's umask."""
    for path in root.rglob("*"):
        if not path.is_symlink():
            is_program = path.is_dir() or (path.stat().st_mode & 0o100 and path.read_bytes()[:2] == b"#!")
            path.chmod(0o755 if is_program else 0o644)


def build(wheel: Path, out: Path, *, wheels: Path | None = None, level: int = 6) -> Path:
    """Build the package of a wheel; return its path.  Raises CannotBuild."""
    version, arch = facts(wheel)
    check_tools()
    os.umask(0o022)
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"gpulimit_{version}_{ARCHITECTURES[arch]}.deb"
    with tempfile.TemporaryDirectory(prefix="gpulimit-deb-") as name:
        root = Path(name) / "root"
        root.mkdir()
        install(root, wheel.absolute(), arch, wheels)
        integrate(root)
        document(root, version)
        tidy(root)
        control(root, version, arch)
        env = dict(os.environ, SOURCE_DATE_EPOCH=str(epoch_s()))
        made = ["dpkg-deb", "--root-owner-group", "-Zxz", f"-z{level}", "--build", str(root), str(target)]
        subprocess.run(made, env=env, check=True, stdout=subprocess.DEVNULL)
    return target


def main() -> int:
    parser = argparse.ArgumentParser(prog="release.deb", description="Build the Debian package of a wheel.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--quick", action="store_true", help="compress less")
    options = parser.parse_args()
    try:
        print(
            build(
                options.wheel, options.out.absolute(), wheels=options.wheels, level=0 if options.quick else 6
            )
        )
    except (CannotBuild, ValueError) as error:
        print(f"release.deb: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"release.deb: {error.cmd[0]} failed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
