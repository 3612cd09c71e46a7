# SPDX-License-Identifier: Apache-2.0
"""What `gpulimit run` and the library say to a user whose quota, GPU or options cannot be."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from limiter import segment
from limiter.commands.run import DRIVER_NODES

LOAD = (sys.executable, "-m", "limiter", "load", "--launches", "1")


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        ("abc", "--gpu: 'abc' is neither a number nor a UUID; there is 0 (GPU-"),
        ("9", "--gpu: there is no GPU '9'; there is 0 (GPU-"),
        ("", "--gpu: '' is neither a number nor a UUID; there is 0 (GPU-"),
        ("0,7", "--gpu: there is no GPU '7'"),
        ("-1", "--gpu: '-1' is neither"),
        ("GPU-ffffffff", "--gpu: there is no GPU 'GPU-ffffffff'"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused_before_the_start(gpulimit, gpu: str, said: str) -> None:
    done = gpulimit("run", f"--gpu={gpu}", "--memory", "4GiB", "--", "echo", "started", expect=2)
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_gpu_is_named_by_number_or_the_beginning_of_its_uuid(gpulimit) -> None:
    uuid = gpulimit("run", "--gpu", "x", "--", "true").stderr.split("(")[1].split(")")[0]
    for gpu in ("0", uuid, uuid[:12]):
        done = gpulimit("run", "--gpu", gpu, "--memory", "4GiB", "--", *LOAD, expect=0)
        assert done.stderr == ""


def test_a_run_without_a_quota_says_so(gpulimit, sim_env) -> None:
    env = {k: v for k, v in sim_env.items() if k != "GPULIMIT_TENANT"}
    note = "gpulimit: no quota is given, so the program is not limited; see --memory and --compute\n"
    assert gpulimit("run", "--", "true", env=env, expect=0).stderr == note
    for arguments in (("--memory", "4GiB"), ("--compute", "30%"), ("--tenant", "somebody-s")):
        assert gpulimit("run", *arguments, "--", "true", env=env, expect=0).stderr == ""
    told = env | {"GPULIMIT_MEMORY": "4GiB"}
    assert gpulimit("run", "--", "true", env=told, expect=0).stderr == ""
    by_daemon = env | {"GPULIMIT_SOCKET": "/run/there-may-be-one.sock"}
    assert gpulimit("run", "--", "true", env=by_daemon, expect=0).stderr == ""


def test_a_gang_is_no_quota_and_its_name_joins_nothing_without_a_daemon(gpulimit, sim_env) -> None:
    env = {k: v for k, v in sim_env.items() if k != "GPULIMIT_TENANT"}
    alone = "gpulimit: no daemon here, so --gang job joins this tenant with no other\n"
    done = gpulimit("run", "--gang", "job", "--memory", "4GiB", "--", "true", env=env, expect=0)
    assert done.stderr == alone
    for word in ("off", "AUTO"):
        done = gpulimit("run", "--gang", word, "--memory", "4GiB", "--", "true", env=env, expect=0)
        assert done.stderr == ""
    done = gpulimit("run", "--gang", "off", "--", "true", env=env, expect=0)
    assert "no quota is given" in done.stderr
    refused = gpulimit("run", "--gang", "my job", "--", "echo", "started", env=env, expect=2)
    assert (refused.stdout, len(refused.stderr.splitlines())) == ("", 1)
    assert '--gang: "my job" at character 3' in refused.stderr


def test_a_run_without_a_driver_says_so(gpulimit, sim_env) -> None:
    if any(Path(node).exists() for node in DRIVER_NODES):
        pytest.skip("SKIPPED: there is a driver")
    env = {k: v for k, v in sim_env.items() if k != "LD_LIBRARY_PATH"}
    done = gpulimit("run", "--memory", "4GiB", "--", "true", env=env, expect=0)
    assert done.stderr.startswith("gpulimit: no CUDA driver is found here (libcuda.so.1)")
    assert len(done.stderr.splitlines()) == 1
    assert gpulimit("run", "--sim", "--memory", "4GiB", "--", "true", env=env, expect=0).stderr == ""


def test_a_quota_below_a_context_s_cost_is_said_once_with_the_size_that_is_needed(gpulimit) -> None:
    done = gpulimit("run", "--memory", "512MiB", "--", *LOAD, "--threads", "4", expect=1)
    lines = [line for line in done.stderr.splitlines() if "a context alone takes" in line]
    assert len(lines) == 1, done.stderr
    said = re.search(r"takes (\d+) MiB of memory, and the quota is 512 MiB: .* give it (\d+) MiB", lines[0])
    assert said is not None, lines[0]
    assert said[1] == said[2]
    assert "CUDA_ERROR_OUT_OF_MEMORY" in done.stderr
    enough = f"{int(said[1]) + 32}MiB"  # and what the program needs
    assert gpulimit("run", "--memory", enough, "--", *LOAD, expect=0).stderr == ""


def test_a_quota_that_others_have_used_up_is_no_such_quota(gpulimit, start_process, sim_env, tenant) -> None:
    run = [sys.executable, "-m", "limiter", "run", "--tenant", tenant, "--memory", "1GiB", "--"]
    start_process([*run, *LOAD[:3], "load", "--idle", "--memory", "256MiB", "--seconds", "40"], env=sim_env)
    deadline = time.monotonic() + 20
    while not holds(tenant):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    done = gpulimit(*run[3:], *LOAD, expect=1)
    assert "a context alone takes" not in done.stderr


def holds(tenant: str) -> bool:
    try:
        return any(device.used_bytes >= 700 << 20 for device in segment.read(tenant).devices)
    except FileNotFoundError:
        return False


def test_a_process_that_gpulimit_refuses_is_not_told_of_a_missing_gpu(gpulimit, limited_env) -> None:
    done = gpulimit("load", "--launches", "1", env=limited_env | {"GPULIMIT_MEMORY": "4GX"}, expect=1)
    assert 'GPULIMIT_MEMORY: "4GX"' in done.stderr
    assert "this process may not use the GPU" in done.stderr
    assert "--sim" not in done.stderr
    assert "finds no GPU" not in done.stderr


def test_the_books_show_the_default_weight(gpulimit, start_process, sim_env, tenant) -> None:
    run = [sys.executable, "-m", "limiter", "run", "--tenant", tenant, "--request", "20", "--memory", "4GiB"]
    done = gpulimit(*run[3:], "--", *LOAD, expect=0)
    assert "--request has no effect" in done.stderr
    assert {device.weight for device in segment.read(tenant).devices} == {100}
