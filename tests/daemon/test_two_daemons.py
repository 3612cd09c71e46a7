# SPDX-License-Identifier: Apache-2.0
"""Two daemons on one node: what each needs of its own is said, and none takes anything from the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.conftest import ask, eventually, free_port, is_ready


@pytest.fixture
def second(daemon, tenant, run_dir, tmp_path):
    """Start a second daemon that has all of its own, but for what is given; return it when it has ended."""

    def start(**options: str):
        own = {
            "socket": str(run_dir / "second.sock"),
            "state_segment": f"gpulimit.s.{tenant}-2",
            "state_dir": str(tmp_path / "second"),
            "metrics_addr": f"127.0.0.1:{free_port()}",
        }
        return daemon(is_awaited=False, **{**own, **options})

    yield start
    Path(f"/dev/shm/gpulimit.s.{tenant}-2").unlink(missing_ok=True)


def test_a_second_daemon_is_told_what_it_needs_of_its_own(daemon, second, run_dir, tenant) -> None:
    first = daemon()
    taken = f"127.0.0.1:{first.metrics_port}"
    in_use = f"metrics_addr: cannot listen on {taken}: Address already in use"
    for options, said in (
        (
            {"state_segment": f"gpulimit.s.{tenant}"},
            "needs its own --state-segment, --socket and --metrics-addr",
        ),
        ({"socket": first.socket}, f"socket: {first.socket}: another daemon listens there"),
        ({"metrics_addr": taken}, f"{in_use}; give this daemon its own address with --metrics-addr"),
    ):
        other = second(**options)
        assert other.process.wait(timeout=20) != 0, options
        assert said in other.log.read_text()
        assert first.state()["gpus"]  # undisturbed, and still behind its socket


def test_a_tenant_of_another_daemon_is_refused_with_the_reason(
    daemon, second, client, tenant, run_dir
) -> None:
    daemon()
    client(memory="4GiB")
    other = second()

    eventually(lambda: other.socket and Path(other.socket).exists() and is_ready(other))
    code = (
        "import json,os,sys; from tests.daemon.conftest import ask; from limiter._native import lib;"
        "b = {'version': int(lib.GL_LAYOUT_VERSION), 'pid': os.getpid(), 'tenant': sys.argv[2]};"
        "print(json.dumps(ask(sys.argv[1], 'POST', '/v1/workers', b)[::2]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, other.socket, tenant],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ),
    )
    status, answer = json.loads(done.stdout)
    assert status == 409
    assert f"tenant {tenant} is served by another daemon" in answer["error"]
    assert "take another name" in answer["error"]
    assert ask(other.socket, "GET", "/v1/state")[0] == 200


def test_metrics_for_all_the_world_are_warned_of(daemon) -> None:
    port = free_port()
    open_to_all = daemon(metrics_addr=f"0.0.0.0:{port}")
    text = open_to_all.stop()
    assert f"metrics on 0.0.0.0:{port} name tenants, users and commands" in text
    assert "--metrics-addr 127.0.0.1:PORT" in text
    assert "metrics on" not in daemon().stop()
