# SPDX-License-Identifier: Apache-2.0
"""What `gpulimit run --container` hands to docker and podman."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from limiter import container, image
from limiter.commands import run as command
from limiter.container import Wish
from limiter.errors import UsageError
from limiter.image import CannotAsk, Image

SHELF = Path("/srv/shelf")
NOWHERE = {"GPULIMIT_SOCKET": "/no/such/folder/daemon.sock"}


def pairs(arguments: list[str]) -> list[tuple[str, str]]:
    assert len(arguments) % 2 == 0
    return list(zip(arguments[::2], arguments[1::2], strict=True))


def made(
    wish: Wish, environ: dict[str, str] | None = None, known: Image | None = None
) -> list[tuple[str, str]]:
    return pairs(container.arguments(wish, NOWHERE | (environ or {}), known or Image()))


def test_the_folder_the_library_and_the_quota() -> None:
    got = made(Wish("docker", SHELF), {"GPULIMIT_MEMORY": "4GiB", "PATH": "/bin", "GPULIMIT_LIB_DIR": "/x"})
    assert got == [
        ("-v", "/srv/shelf:/srv/shelf:ro"),
        ("-e", "LD_PRELOAD=/srv/shelf/libgpulimit.so"),
        ("-e", "GPULIMIT_MEMORY=4GiB"),
        ("--gpus", "all"),
    ]


@pytest.mark.parametrize(
    ("now", "before"),
    [
        ("", ""),
        ("/usr/lib/libjemalloc.so.2", "/usr/lib/libjemalloc.so.2:"),
        ("/a.so /b.so:/c.so", "/a.so:/b.so:/c.so:"),
        (":/a.so:", "/a.so:"),
        ("/srv/shelf/libgpulimit.so:/a.so", "/a.so:"),
    ],
)
def test_what_the_image_preloads_stays_before_ours(now: str, before: str) -> None:
    got = made(Wish("docker", SHELF), known=Image({"LD_PRELOAD": now}))
    assert ("-e", f"LD_PRELOAD={before}/srv/shelf/libgpulimit.so") in got


def test_by_file_the_image_s_list_is_kept_and_no_file_is_ever_changed(tmp_path: Path) -> None:
    wish = Wish("docker", tmp_path, by_file=True)
    image_list = "# ours\n/a.so\n\n /b.so:/c.so # more\n"
    got = made(wish, known=Image({"LD_PRELOAD": "/untouched.so"}, image_list))
    assert not [value for _, value in got if value.startswith("LD_PRELOAD")]
    (mount,) = (value for _, value in got if value.endswith(":/etc/ld.so.preload:ro"))
    path = Path(mount.partition(":")[0])
    assert path.read_text() == f"/a.so\n/b.so\n/c.so\n{tmp_path}/libgpulimit.so\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    before = path.stat().st_ino
    made(wish, known=Image({}, image_list))
    assert path.stat().st_ino == before
    made(wish)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_daemon_s_folder_is_shown_where_it_is(tmp_path: Path) -> None:
    environ = {"GPULIMIT_SOCKET": str(tmp_path / "daemon.sock")}
    got = made(Wish("docker", SHELF), environ)
    assert ("-v", f"{tmp_path}:{tmp_path}:ro") in got
    assert ("-e", f"GPULIMIT_SOCKET={tmp_path}/daemon.sock") in got
    with pytest.raises(UsageError, match="absolute"):
        made(Wish("docker", SHELF), {"GPULIMIT_SOCKET": "daemon.sock"})


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (Wish("docker", SHELF, gpus=["0", "GPU-1"]), [("--gpus", '"device=0,GPU-1"')]),
        (Wish("podman", SHELF), [("--device", "nvidia.com/gpu=all")]),
        (
            Wish("podman", SHELF, gpus=["0", "1"]),
            [("--device", "nvidia.com/gpu=0"), ("--device", "nvidia.com/gpu=1")],
        ),
        (
            Wish("docker", SHELF, gpus=["0"], devices=["gpulimit.io/gpu=a"]),
            [("--device", "gpulimit.io/gpu=a")],
        ),
    ],
)
def test_gpus(wish: Wish, expected: list[tuple[str, str]]) -> None:
    assert made(wish)[2:] == expected


def test_a_blank_is_refused_since_a_shell_would_split_it() -> None:
    with pytest.raises(UsageError, match="blank"):
        made(Wish("docker", SHELF), {"GPULIMIT_MEMORY": '{"0": 1}'})


# ---- the engine ----

ENGINE = """#!/bin/sh
echo "$@" >> {log}
case "$1 $2" in
"image inspect") [ "$5" = known ] || {{ echo "Error: No such image: $5" >&2; exit 1; }}; echo '{env}';;
"create known") echo c0ffee;;
"cp c0ffee:/etc/ld.so.preload") {cp};;
"rm -f") ;;
*) exit 9;;
esac
"""
HAS = "cd {folder} && tar -cf - ld.so.preload"
LACKS = "echo 'Error: Could not find the file /etc/ld.so.preload in container c0ffee' >&2; exit 1"


def engine(folder: Path, *, env: str = "null", cp: str = LACKS) -> str:
    program = folder / "engine"
    program.write_text(ENGINE.format(log=folder / "log", env=env, cp=cp.format(folder=folder)))
    program.chmod(0o755)
    return str(program)


def test_an_image_is_asked_for_its_environment(tmp_path: Path) -> None:
    found = image.ask(
        engine(tmp_path, env='["PATH=/bin","LD_PRELOAD=/a.so","ODD"]'), "known", with_file=False
    )
    assert found.environment == {"PATH": "/bin", "LD_PRELOAD": "/a.so", "ODD": ""}
    assert "create" not in (tmp_path / "log").read_text()


def test_an_image_is_asked_for_its_preload_file_and_the_container_for_that_removed(tmp_path: Path) -> None:
    (tmp_path / "ld.so.preload").write_text("/a.so\n")
    assert image.ask(engine(tmp_path, cp=HAS), "known", with_file=True).preload_file == "/a.so\n"
    assert (tmp_path / "log").read_text().splitlines()[-1] == "rm -f c0ffee"
    assert image.ask(engine(tmp_path), "known", with_file=True).preload_file == ""


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("unknown", {}, "No such image: unknown"),
        ("known", {"env": "nonsense"}, "unexpected answer"),
        ("known", {"env": "[1]"}, "unexpected answer"),
        ("known", {"cp": "echo broken >&2; exit 3"}, "broken"),
        ("known", {"cp": "echo no tar"}, "unexpected answer"),
    ],
)
def test_what_an_engine_cannot_tell_is_an_error(
    tmp_path: Path, name: str, settings: dict[str, str], said: str
) -> None:
    with pytest.raises(CannotAsk, match=said):
        image.ask(engine(tmp_path, **settings), name, with_file=True)


def test_an_engine_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotAsk, match="engine image inspect: No such file"):
        image.ask(str(tmp_path / "engine"), "known", with_file=False)


# ---- the command ----


def test_a_bad_quota_is_refused_and_nothing_printed(
    gpulimit, sim_env: dict[str, str], tmp_path: Path
) -> None:
    done = gpulimit("run", "--container", "--memory", "4GX", "--lib-dir", str(tmp_path / "shelf"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--memory" in done.stderr
    assert not (tmp_path / "shelf").exists()


@pytest.mark.parametrize("flag", sorted(command.CONTAINER_OPTIONS))
def test_options_of_containers_need_one(gpulimit, flag: str) -> None:
    value = {"--preload-file": [], "--engine": ["podman"]}.get(flag, ["x"])
    done = gpulimit("run", flag, *value, "--", "true")
    assert done.returncode == 2
    assert f"{flag} goes with --container" in done.stderr


def test_it_prints_one_argument_a_line_and_fills_the_folder(
    gpulimit, sim_env: dict[str, str], tmp_path: Path
) -> None:
    env = sim_env | {"GPULIMIT_SOCKET": "/no/such/daemon.sock"}
    del env["GPULIMIT_TENANT"]
    shelf = tmp_path / "shelf"
    done = gpulimit("run", "--container", "--memory", "1GiB", "--lib-dir", str(shelf), env=env)
    assert done.returncode == 0
    got = pairs(done.stdout.splitlines())
    assert ("-e", f"LD_PRELOAD={shelf}/libgpulimit.so") in got
    assert ("-e", "GPULIMIT_MEMORY=1GiB") in got
    assert not [value for _, value in got if "TENANT" in value]
    assert os.access(shelf / "libgpulimit.so", os.R_OK)
    assert "without --image" in done.stderr
