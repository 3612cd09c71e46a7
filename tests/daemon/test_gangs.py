# SPDX-License-Identifier: Apache-2.0
"""The gang that a tenant's processes are told, and whose word it is, with a real daemon."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from limiter.quota import GangMode
from tests.conftest import clean_environ
from tests.daemon.conftest import eventually


def mode(one) -> GangMode:
    return GangMode(one.tell(order="look")["gang"])


def test_an_environment_names_a_gang(daemon, client, tenant, other_tenant) -> None:
    daemon()
    assert mode(client(gang="job")) == GangMode.NAMED
    assert mode(client(other_tenant, gang="off")) == GangMode.OFF


def test_without_a_word_a_gang_is_automatic(daemon, client) -> None:
    daemon()
    assert mode(client()) == GangMode.AUTO


def test_a_gang_that_cannot_be_read_is_refused(daemon, client) -> None:
    daemon()
    refused = client(gang="a b", is_refused=True)
    assert refused.answer["status"] == 422
    assert "GPULIMIT_GANG" in refused.answer["error"]


def test_a_gang_is_changed_while_programs_run_and_a_waiting_thread_is_woken(daemon, client, tenant) -> None:
    here = daemon()
    one = client(memory="1GiB", gang="job")
    (before,) = one.tell(order="look")["devices"]
    status, _, shown = here.ask("PATCH", f"/v1/tenants/{tenant}/quota", {"gang": "off"})
    assert (status, shown["source"], shown["quota"]["gang"]) == (200, "api", "off")
    (after,) = one.tell(order="look")["devices"]
    assert mode(one) == GangMode.OFF
    assert after["change"] > before["change"]
    assert after["memory_limit_bytes"] == before["memory_limit_bytes"]
    here.ask("PATCH", f"/v1/tenants/{tenant}/quota", {"gang": "other.job"})
    assert mode(one) == GangMode.NAMED
    here.ask("PATCH", f"/v1/tenants/{tenant}/quota", {"gang": None})
    assert mode(one) == GangMode.AUTO


@pytest.mark.parametrize("said", ["a/b", "x" * 64, "é", ["job"], {"name": "job"}, True])
def test_a_call_with_a_gang_that_cannot_be_read_is_refused_by_name(daemon, tenant, said) -> None:
    here = daemon()
    status, _, shown = here.ask("PUT", f"/v1/tenants/{tenant}/quota", {"gang": said})
    assert status == 422
    assert shown["error"].startswith("gang")


@pytest.fixture
def gpulimit(run_process, run_dir):
    """Run the command line against the test's daemon, whether it runs or not."""
    env = clean_environ() | {"GPULIMIT_SOCKET": str(run_dir / "daemon.sock")}

    def run(*arguments: str, **options: object):
        return run_process([sys.executable, "-m", "limiter", *arguments], env=env, **options)

    return run


def test_the_command_line_sets_and_shows_a_gang(daemon, client, tenant, gpulimit) -> None:
    here = daemon()
    one = client(gang="job")
    shown = gpulimit("quota", "show", tenant, expect=0).stdout.splitlines()
    assert shown == [
        f"tenant    {tenant}",
        "source    default",
        "gang      job",
        "the gang is by environment",
    ]
    shown = gpulimit("quota", "set", tenant, "--gang", "OFF", expect=0).stdout.splitlines()
    assert shown == [f"tenant    {tenant}", "source    api", "gang      off"]
    assert mode(one) == GangMode.OFF
    assert "no limits" in gpulimit("quota", "set", tenant, "--gang", "none", expect=0).stdout
    refused = gpulimit("quota", "set", tenant, "--gang", "a/b", expect=2)
    assert '--gang: "a/b" at character 2' in refused.stderr
    here.stop()
    refused = gpulimit("quota", "set", tenant, "--gang", "job", expect=1)
    assert "--gang needs the daemon" in refused.stderr


def test_a_gang_outlives_the_daemon(daemon, client, tenant) -> None:
    here = daemon()
    one = client(memory="1GiB")
    here.ask("PATCH", f"/v1/tenants/{tenant}/quota", {"gang": "job"})
    here.stop()
    again = daemon()
    assert again.tenant(tenant)["quota"]["gang"] == "job"
    assert mode(one) == GangMode.NAMED


def test_an_environments_gang_outlives_the_daemon(daemon, client, tenant) -> None:
    here = daemon()
    one = client(gang="job")
    here.stop()
    again = daemon()
    assert again.tenant(tenant)["quota"]["gang"] == "job"
    assert mode(one) == GangMode.NAMED


def test_the_file_names_a_gang_and_is_read_again(daemon, client, tenant, other_tenant, tmp_path) -> None:
    file = tmp_path / "gpulimit.toml"
    file.write_text(f'[default]\nmemory = "1GiB"\ngang = "off"\n[tenants.{tenant}]\ngang = "job"\n')
    here = daemon("--config", str(file))
    one, other = client(), client(other_tenant)
    assert (mode(one), mode(other)) == (GangMode.NAMED, GangMode.OFF)
    for each in (one, other):
        (device,) = each.tell(order="look")["devices"]
        assert device["memory_limit_bytes"] == 1 << 30
    file.write_text('[default]\nmemory = "1GiB"\n')
    here.process.send_signal(signal.SIGHUP)
    eventually(lambda: (mode(one), mode(other)) == (GangMode.AUTO, GangMode.AUTO))


TWO_CARDS = {"GPULIMIT_SIM_PROFILE": "two-h100"}


def on_both(one, here) -> list[str]:
    """Let a client show up on both GPUs; return them."""
    gpus = [gpu["uuid"] for gpu in here.state()["gpus"]]
    for gpu in gpus:
        one.tell(order="device", gpu=gpu, card_bytes=80 << 30)
    return gpus


def test_the_state_shows_a_tenant_whose_processes_wait_for_each_other(daemon, client, tenant) -> None:
    here = daemon(env=TWO_CARDS)
    one = client()
    gpus = on_both(one, here)
    assert len(gpus) == 2
    assert here.tenant(tenant)["gang"] == {
        "id": None,
        "mode": "auto",
        "source": None,
        "waits_on": [],
        "released": 0,
    }
    one.tell(order="wait_for_others", devices=0b01, released=3)
    assert here.tenant(tenant)["gang"]["id"] is None  # on one GPU alone it is no gang
    one.tell(order="wait_for_others", devices=0b11, released=3)
    assert here.tenant(tenant)["gang"] == {
        "id": tenant,
        "mode": "auto",
        "source": None,
        "waits_on": gpus,
        "released": 3,
    }
    (gang,) = here.state()["gangs"]
    assert gang == {"id": tenant, "mode": "auto", "members": [tenant], "gpus": sorted(gpus), "turn": False}
    here.ask("PATCH", f"/v1/tenants/{tenant}/quota", {"gang": "off"})
    assert here.state()["gangs"] == []
    assert here.tenant(tenant)["gang"]["waits_on"] == gpus


def test_the_state_shows_tenants_of_one_name_as_one_gang(
    daemon, client, tenant, other_tenant, gpulimit
) -> None:
    here = daemon(env=TWO_CARDS)
    one, other = client(gang="job"), client(other_tenant, gang="job")
    gpus = on_both(one, here)
    other.tell(order="device", gpu=gpus[1], card_bytes=80 << 30)
    (gang,) = here.state()["gangs"]
    assert gang["gpus"] == []  # known to their programs, and not used
    one.tell(order="spend", ns=1)
    other.tell(order="spend", ns=1)
    (gang,) = here.state()["gangs"]
    assert gang["id"] == f"uid:{os.getuid()}/job"
    assert (gang["mode"], gang["members"], gang["gpus"]) == ("named", [tenant, other_tenant], sorted(gpus))
    shown = gpulimit("status", "--over", "0", expect=0).stdout
    names = ", ".join(gpu[:12] for gpu in sorted(gpus))
    assert f"gang uid:{os.getuid()}/job: {tenant}, {other_tenant} on {names}" in shown.splitlines()
