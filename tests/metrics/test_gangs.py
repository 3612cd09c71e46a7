# SPDX-License-Identifier: Apache-2.0
"""Gangs on the page: their members and GPUs, and what is counted once for a tenant on several GPUs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from hypervisor.collector.gangs import membership
from hypervisor.exporter.families import families_of
from hypervisor.metrics.snapshot import ClientView, GangMembership, Identity, Snapshot
from hypervisor.node.gangs import TenantGang
from limiter.quota import GangMode
from limiter.segment import GangUsage, Usage
from tests.daemon.conftest import eventually
from tests.unit.test_tenant_status import device

NAMED, OFF = TenantGang(GangMode.NAMED, "uid:0/job"), TenantGang(GangMode.OFF)


def usage(*entries: int, released: int = 3) -> Usage:
    return Usage("team", 0, 1, (device(0), device(1), device(2)), (), GangUsage(entries, released))


def test_a_tenant_is_a_gang_by_itself_where_it_waits_on_several_gpus() -> None:
    read = usage(0, 2)
    found = [membership(read, each, TenantGang(), "team").id for each in read.devices]
    assert found == ["team", "", "team"]
    assert membership(usage(1), device(1), TenantGang(), "team").id == ""


def test_a_named_gang_is_where_it_uses_a_gpu_and_off_is_none() -> None:
    used = replace(device(0), spent_ns=1)
    assert membership(usage(), used, NAMED, "team") == GangMembership("uid:0/job", "named", 3)
    assert membership(usage(), device(1), NAMED, "team") == GangMembership("", "named", 3)  # not used yet
    assert membership(None, None, NAMED, "team") == GangMembership("", "named", None)
    assert membership(usage(0, 1), device(0), OFF, "team") == GangMembership("", "off", 3)


def test_a_count_that_cannot_be_true_is_not_known() -> None:
    assert membership(usage(released=1 << 63), device(0), NAMED, "team").released is None


def client(tenant: str, gpu: str, gang: GangMembership, pod: str = "") -> ClientView:
    return ClientView(Identity(tenant, namespace="ns" if pod else "", pod=pod), gpu, 0, gang=gang)


def rows(*clients: ClientView) -> dict[tuple[str, ...], float]:
    """Return the values of gangs' families by name and label values."""
    families = families_of(Snapshot(clients=clients), has_debug_labels=False)
    return {
        (family.name.removeprefix("gpulimit_"), *(value for _, value in labels.pairs)): value
        for family in families
        for labels, value in family.rows
        if "gang" in family.name
    }


def test_members_and_gpus_are_counted_once_and_launches_once_for_a_tenant() -> None:
    job = GangMembership("ns/job", "named", 5)
    found = rows(client("a", "GPU-1", job), client("a", "GPU-2", job), client("b", "GPU-2", job))
    assert found == {
        ("client_gang_info", "a", "GPU-1", "0", "ns/job", "named"): 1,
        ("client_gang_info", "a", "GPU-2", "0", "ns/job", "named"): 1,
        ("client_gang_info", "b", "GPU-2", "0", "ns/job", "named"): 1,
        ("gang_members", "ns/job"): 2,
        ("gang_gpus", "ns/job"): 2,
        ("client_gang_released_total", "a"): 5,
        ("client_gang_released_total", "b"): 5,
    }


def test_tenants_that_a_page_cannot_tell_apart_are_added_up() -> None:
    one, other = (client(t, "GPU-1", GangMembership(released=n), pod="p") for t, n in (("a", 2), ("b", 3)))
    assert rows(one, other) == {("client_gang_released_total", "ns", "p"): 5}


def test_an_odd_name_cannot_break_the_page() -> None:
    found = rows(client("a", "GPU-1", GangMembership('x"\n/job', "named")))
    assert found["gang_members", 'x"?/job'] == 1


@pytest.fixture
def two_cards(daemon_env: dict[str, str]) -> None:
    daemon_env["GPULIMIT_SIM_PROFILE"] = "two-h100"


@pytest.mark.usefixtures("two_cards")
def test_a_real_job_of_two_tenants_is_on_the_page_and_in_top(
    node, work, tenant, run_process, daemon_env
) -> None:
    served = node()
    work("-a", "--seconds", "40", "--idle", gang="job")
    work("-b", "--seconds", "40", "--idle", gang="job")
    work("-c", "--seconds", "40", "--idle", gang="off")
    gang = f"uid:{os.getuid()}/job"
    page = served.until(lambda s: s.one("gang_members", gang=gang) == 2 and s)
    assert page.one("client_gang_info", tenant=f"{tenant}-a", gang=gang, mode="named") == 1
    assert page.of("client_gang_info", tenant=f"{tenant}-c") == []
    assert page.one("gang_gpus", gang=gang) == 1
    assert page.one("client_gang_released_total", tenant=f"{tenant}-a") == 0
    argv = [sys.executable, "-m", "limiter", "top", "--once"]
    env = daemon_env | {"GPULIMIT_SOCKET": served.daemon.socket}
    shown = run_process([*argv, "--hosts", served.address], env=env, expect=0).stdout
    (line,) = [line for line in shown.splitlines() if f"{tenant}-a" in line and "idle &" in line]
    assert gang in line


@pytest.mark.usefixtures("two_cards")
def test_turns_of_a_real_job_beside_another_tenant_are_counted(node, work, tenant) -> None:
    served = node()
    assert served.metrics().one("gang_turn_seconds_count") == 0
    work("-job", "--ranks", "2", "--seconds", "30", gang="job")
    work("-one", "--seconds", "30", env={"CUDA_VISIBLE_DEVICES": "0"})
    gang = f"uid:{os.getuid()}/job"
    page = served.until(lambda s: (s.one("gang_turn_seconds_count") or 0) >= 5 and s, within_s=25)
    assert page.one("gang_gpus", gang=gang) == 2
    assert page.one("gang_drain_seconds_count") > 0
    page = served.until(
        lambda s: sum(s.of("gang_turns_total")) == s.one("gang_turn_seconds_count") and s, within_s=25
    )
    assert page.one("gang_turns_total", reason="quantum") > 0
    eventually(lambda: [g["turn"] for g in served.daemon.state()["gangs"] if g["id"] == gang] == [True])
