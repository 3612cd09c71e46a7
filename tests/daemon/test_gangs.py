# SPDX-License-Identifier: Apache-2.0
"""The gang that a tenant's processes are told, and whose word it is, with a real daemon."""

from __future__ import annotations

import signal

import pytest

from limiter.quota import GangMode
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
