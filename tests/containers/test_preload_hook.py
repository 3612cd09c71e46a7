# SPDX-License-Identifier: Apache-2.0
"""The hook that merges an image's /etc/ld.so.preload with ours: in a mount namespace as a runtime makes it,
and started by runc as the specification of `gpulimit cdi` says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Built, CompileC
from tests.k8s.node import LIBRARIES, LOADER
from tests.k8s.parts import PARTS

OURS = "/usr/lib/gpulimit/libgpulimit.so"
TIMEOUT_S = 30
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")

MOUNTED = """
set -e
mount --bind "$1/rootfs" "$1/rootfs"
mount --bind "$1/ours" "$1/rootfs/etc/ld.so.preload"
printf %s "$2" | "$3"
cat "$1/rootfs/etc/ld.so.preload"
awk -v at="$1/rootfs/etc/ld.so.preload" '$5 == at { options = $6 } END { print options }' /proc/self/mountinfo
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "rootfs/etc").mkdir(parents=True)
    (tmp_path / "ours").write_text(f"{OURS}\n")
    (tmp_path / "rootfs/etc/ld.so.preload").touch()  # as runtimes do where a file is to be mounted
    configure(tmp_path, {"root": {"path": "rootfs", "readonly": True}})
    return tmp_path


def configure(bundle: Path, config: Any) -> None:
    text = config if isinstance(config, str) else json.dumps({"ociVersion": "1.0.2", **config})
    (bundle / "config.json").write_text(text)


def image_has(bundle: Path, text: str) -> None:
    (bundle / "rootfs/etc/ld.so.preload").write_text(text)


def hook(built: Built, bundle: Path, state: str | None = None, script: str = MOUNTED) -> Any:
    """Start the hook in a mount namespace; it prints what the file then is, and how that is mounted."""
    told = {"ociVersion": "1.0.2", "id": 'a"}', "pid": 7, "annotations": {"{": "]"}, "bundle": str(bundle)}
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    done = subprocess.run(
        [
            *("unshare", "-m", "bash", "-c", script, "bash", str(bundle)),
            *(json.dumps(told) if state is None else state, str(built.lib / "preload-hook")),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if "ermission denied" in done.stderr or "not permitted" in done.stderr:
        pytest.skip(f"cannot mount here: {done.stderr}")
    return done


@pytest.mark.parametrize("text", ["", "\n \t\n", "# nothing\n#more", ":"])
def test_an_image_without_is_left_as_it_is(built: Built, bundle: Path, text: str) -> None:
    image_has(bundle, text)
    done = hook(built, bundle)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith(f"{OURS}\n") and "own.so" not in done.stdout
    assert not (bundle / "gpulimit.ld.so.preload").exists()


@pytest.mark.parametrize("text", ["/lib/own.so", "/lib/own.so\n", "# first\n/lib/own.so /lib/two.so\n"])
def test_ours_comes_last_and_the_image_s_stays(built: Built, bundle: Path, text: str) -> None:
    image_has(bundle, text)
    done = hook(built, bundle)
    assert done.returncode == 0, done.stderr
    *lines, options = done.stdout.splitlines()
    assert lines[-1] == OURS and text.split("\n")[0] in lines and "/lib/own.so" in " ".join(lines)
    assert {"ro", "nosuid", "nodev"} <= set(options.split(","))
    assert (bundle / "rootfs/etc/ld.so.preload").read_text() == text, "the image is as it was"
    assert (bundle / "gpulimit.ld.so.preload").stat().st_mode & 0o777 == 0o644


def test_paths_as_runtimes_write_them(built: Built, tmp_path: Path) -> None:
    bundle = tmp_path / "a \\ & <b>"
    (bundle / "rootfs/etc").mkdir(parents=True)
    (bundle / "ours").write_text(f"{OURS}\n")
    image_has(bundle, "/lib/own.so")
    config = json.dumps(
        {"hooks": {"root": {"path": "/no"}}, "mounts": [{"a": "}"}], "root": {"path": str(bundle / "rootfs")}}
    )
    configure(bundle, config.replace("&", "\\u0026").replace("<", "\\u003C"))
    state = json.dumps({"bundle": str(bundle)}, indent=1).replace("&", "\\u0026").replace("<", "\\u003c")
    done = hook(built, bundle, state)
    assert done.returncode == 0 and "/lib/own.so" in done.stdout, done.stderr


def test_a_link_of_the_image_is_not_followed(built: Built, bundle: Path) -> None:
    """While the hook runs, the node's own files are within reach."""
    secret = bundle / "secret"
    secret.write_text("/lib/secret.so\n")
    at = bundle / "rootfs/etc/ld.so.preload"
    at.unlink()
    at.symlink_to(secret)
    script = MOUNTED.replace(
        '"$1/rootfs/etc/ld.so.preload"\nprintf', '"$(readlink -f "$1/rootfs/etc/ld.so.preload")"\nprintf'
    )
    done = hook(built, bundle, script=script)
    assert done.returncode == 1 and "is not a plain file" in done.stderr
    assert not (bundle / "gpulimit.ld.so.preload").exists()


@pytest.mark.parametrize(
    ("state", "config", "said"),
    [
        ("", {}, "state names no bundle"),
        ("[]", {}, "state names no bundle"),
        ('{"bundle": 7}', {}, "state names no bundle"),
        ('{"bundle": "relative"}', {}, "state names no bundle"),
        ('{"bundle": "/none', {}, "state names no bundle"),
        ('{"bundle": "/' + "x" * 5000 + '"}', {}, "state names no bundle"),
        ('{"a": {"bundle": "/x"}, "b": ["bundle", "/x"]}', {}, "state names no bundle"),
        ('{"bundle": "/nowhere"}', {}, "/nowhere/config.json cannot be opened: error 2"),
        (None, "", "names no root"),
        (None, '{"root": "rootfs"}', "names no root"),
        (None, '{"root": {"path": ""}}', "names no root"),
        (None, '{"root": {"readonly": true}, "path": "rootfs"}', "names no root"),
        (None, {"root": {"path": "missing"}}, "missing cannot be opened: error 2"),
        (None, '{"a":' + "[" * 100_000, "names no root"),
    ],
)
def test_what_cannot_be_read_is_said(
    built: Built, bundle: Path, state: str | None, config: Any, said: str
) -> None:
    image_has(bundle, "/lib/own.so")
    if config != {}:
        configure(bundle, config)
    done = hook(built, bundle, state)
    assert done.returncode == 1 and said in done.stderr and done.stderr.startswith("gpulimit: ")


def test_what_is_too_long_or_no_file_or_without_ours(built: Built, bundle: Path) -> None:
    image_has(bundle, "/lib/own.so\n" * 2000)
    done = hook(built, bundle)
    assert done.returncode == 1 and "is too long" in done.stderr
    image_has(bundle, "/lib/own.so\n")
    done = hook(built, bundle, script='mount --bind "$1/rootfs" "$1/rootfs"; printf %s "$2" | "$3"')
    assert done.returncode == 1 and "ours is not mounted" in done.stderr


# ---- as runc does it ----

SHOW = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps))
		if (strstr(line, ".so") && strstr(line, "r-xp"))
			printf("map %s", strrchr(line, ' ') + 1);
	FILE *file = fopen("/etc/ld.so.preload", "r");
	while (file && fgets(line, sizeof line, file))
		printf("file %s", line);
	printf("\nwrite %d\n", open("/etc/ld.so.preload", O_WRONLY) < 0 ? errno : 0);
	printf("unlink %d\n", unlink("/etc/ld.so.preload") < 0 ? errno : 0);
}
"""


@pytest.fixture
def image(tmp_path: Path, compile_c: CompileC) -> Path:
    """A root with a C library, a program, and a library to preload."""
    root = tmp_path / "bundle/rootfs"
    for name in ("bin", "etc", "proc", "usr/lib", "run", "lib64", "lib/x86_64-linux-gnu"):
        (root / name).mkdir(parents=True)
    if not LOADER.exists():
        pytest.skip("an image for x86-64 only")
    shutil.copy(LOADER.resolve(), root / "lib64" / LOADER.name)
    for name in LIBRARIES:
        found = Path("/lib/x86_64-linux-gnu") / name
        if found.exists():
            shutil.copy(found.resolve(), root / "lib/x86_64-linux-gnu" / name)
    shutil.copy(compile_c(SHOW, name="show-preload"), root / "bin/show")
    own = compile_c("int image_has_this;", "-shared", "-fPIC", name="own.so")
    shutil.copy(own, root / "usr/lib/own.so")
    return root


def run_in(image: Path, edits: dict[str, Any], *, is_read_only: bool) -> Any:
    """Run the program in a container made of an image and of edits, applied as CDI demands."""
    runc = PARTS / "runc" if (PARTS / "runc").exists() else shutil.which("runc")
    if runc is None:
        pytest.skip("no runc: make test-k8s fetches it")
    name = f"gpulimit-test-{uuid.uuid4().hex[:8]}"
    mounts = [{"destination": "/proc", "type": "proc", "source": "proc"}]
    for mount in edits["mounts"]:
        mounts.append({"destination": mount["containerPath"], "source": mount["hostPath"], "type": "bind"})
        mounts[-1]["options"] = mount["options"]
    hooks: dict[str, list[Any]] = {}
    for one in edits.get("hooks", ()):
        hooks.setdefault(one["hookName"], []).append({"path": one["path"], "args": one["args"]})
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "args": ["/bin/show"],
            "cwd": "/",
            "env": ["PATH=/bin", *edits["env"]],
            "user": {"uid": 0, "gid": 0},
            "capabilities": {kind: ["CAP_DAC_OVERRIDE"] for kind in ("bounding", "effective", "permitted")},
        },
        "root": {"path": "rootfs", "readonly": is_read_only},
        "mounts": mounts,
        "hooks": hooks,
        "linux": {
            "cgroupsPath": f"/{name}",
            "namespaces": [{"type": t} for t in ("mount", "pid", "ipc", "uts")],
        },
    }
    (image.parent / "config.json").write_text(json.dumps(config))
    command = [runc, "--root", image.parent / "state", "run", "--bundle", image.parent, name]
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if "cgroup" in done.stderr or "not permitted" in done.stderr:
        pytest.skip(f"runc cannot run here: {done.stderr}")
    return done


@pytest.fixture
def edits(gpulimit: Any, tmp_path: Path) -> dict[str, Any]:
    done = gpulimit("cdi", "--no-cards", "--no-daemon", "--library-dir", str(tmp_path / "lib"), expect=0)
    found = json.loads(done.stdout)["containerEdits"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("is_read_only", [False, True])
def test_runc_makes_a_container_with_both(image: Path, edits: dict[str, Any], is_read_only: bool) -> None:
    (image / "etc/ld.so.preload").write_text("/usr/lib/own.so\n")
    done = run_in(image, edits, is_read_only=is_read_only)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    maps = [line for line in lines if line.startswith("map ")]
    assert f"map {OURS}" in maps and "map /usr/lib/own.so" in maps, done.stdout
    assert lines.index("file /usr/lib/own.so") < lines.index(f"file {OURS}")
    assert "write 30" in lines, "read-only"
    assert f"unlink {30 if is_read_only else 16}" in lines, "and in its place"


def test_without_the_hook_the_image_s_would_be_lost(image: Path, edits: dict[str, Any]) -> None:
    (image / "etc/ld.so.preload").write_text("/usr/lib/own.so\n")
    done = run_in(image, {**edits, "hooks": []}, is_read_only=False)
    assert f"map {OURS}" in done.stdout and "own.so" not in done.stdout


def test_runc_makes_no_container_without_a_word(image: Path, edits: dict[str, Any]) -> None:
    (image / "etc/ld.so.preload").write_text("/usr/lib/own.so\n" * 2000)
    done = run_in(image, edits, is_read_only=False)
    assert done.returncode != 0 and "of the image cannot be merged: it is too long" in done.stderr
    (image / "etc/ld.so.preload").unlink()
    done = run_in(image, edits, is_read_only=False)
    assert done.returncode == 0 and f"map {OURS}" in done.stdout
