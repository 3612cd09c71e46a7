# SPDX-License-Identifier: Apache-2.0
"""Many nodes: what their pages say, who is up, stale or down, and pages that mean harm."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from hypervisor.api.serializers import observed_data
from hypervisor.exporter.exposition import render
from hypervisor.exporter.families import families_of
from hypervisor.scraper.parser import parse
from hypervisor.top.assemble import cards_of
from hypervisor.top.fleet import Fleet, node_of, pace_for
from hypervisor.top.history import History
from hypervisor.top.model import NodeView
from hypervisor.top.node_rows import node_rows
from hypervisor.top.page import page as whole_page
from hypervisor.top.page import plain
from hypervisor.top.view_state import ViewState
from tests.metrics import full
from tests.remote.exporters import Behaviour, Exporter, endless, exporter, hang, head, page, raw
from tests.remote.measure import page_of_a_node
from tests.top.measure import best
from tests.top.nodes import history

GIB = 1 << 30


def read(text: str, before: NodeView | None = None) -> NodeView:
    node, dropped = node_of("asked", parse(text.encode()), before)
    return replace(node, dropped=dropped.total())


def test_what_the_daemon_says_and_what_its_metrics_say_is_the_same() -> None:
    """Every field survives the way over the page."""
    snapshot = full.snapshot()
    text = render(families_of(snapshot, has_debug_labels=False), "text")
    local = cards_of(json.loads(json.dumps(observed_data(snapshot, None))))
    remote = read(text).cards
    assert len(remote) == len(local) > 2
    assert remote == local
    assert any(card.vgpus for card in remote)
    assert any(card.migs for card in remote)
    assert any(card.tenants for card in remote)


def test_processes_are_told_apart_with_debug_labels() -> None:
    text = render(families_of(full.snapshot(), has_debug_labels=True), "text")
    node = read(text)
    assert {p.pid for p in node.processes} == {11, 12}
    one = next(p for p in node.processes if p.pid == 11)
    assert (one.tenant, one.user, one.command, one.memory_bytes) == (
        "research/train-0",
        "root",
        "python",
        GIB,
    )
    # Its two processes are one tenant.
    assert [t.name for _, t in node.tenants()].count("research/train-0") == 1


def test_all_smi_s_names_are_understood() -> None:
    labels = 'gpu="NVIDIA A40",instance="n1",host="n1",gpu_uuid="GPU-7",gpu_index="3"'
    instance = labels + ',vgpu_id="5",vgpu_uuid="u",vgpu_type="A40-8Q",vgpu_vm_id="vm-9"'
    node = read(
        f"""all_smi_gpu_utilization{{{labels}}} 45.5
all_smi_gpu_memory_used_bytes{{{labels}}} 1073741824
all_smi_gpu_memory_total_bytes{{{labels}}} 4294967296
all_smi_gpu_temperature_celsius{{{labels}}} 51
all_smi_gpu_power_consumption_watts{{{labels}}} 120.5
all_smi_gpu_frequency_mhz{{{labels}}} 1980
all_smi_gpu_info{{{labels},driver_version="580.1"}} 1
all_smi_vgpu_host_mode{{{labels},host_mode="SR-IOV"}} 1
all_smi_vgpu_scheduler_policy{{{labels}}} 3
all_smi_vgpu_utilization{{{instance}}} 34
all_smi_vgpu_memory_used_bytes{{{instance}}} 1073741824
all_smi_gpu_mig_mode{{{labels}}} 0
"""
    )
    (card,) = node.cards
    assert (card.index, card.name, card.driver) == (3, "NVIDIA A40", "580.1")
    assert card.utilization == pytest.approx(0.455)
    assert (card.memory_ratio, card.temperature_c, card.power_w, card.clock_hz) == (0.25, 51, 120.5, 1.98e9)
    assert card.vgpu_host is not None
    assert (card.vgpu_host.mode, card.vgpu_host.policy) == ("SR-IOV", "fixed share")
    (vgpu,) = card.vgpus
    assert (vgpu.vm, vgpu.type, vgpu.utilization) == ("vm-9", "A40-8Q", pytest.approx(0.34))
    assert card.mig_mode is False


def test_old_all_smi_without_uuids_has_cards_by_index() -> None:
    node = read(
        'all_smi_gpu_utilization{gpu="A",index="0"} 5\nall_smi_gpu_utilization{gpu="A",index="1"} 6\n'
    )
    assert [(c.uuid, c.index) for c in node.cards] == [("index 0", 0), ("index 1", 1)]


def test_nvshare_s_names_are_understood_and_ours_hold() -> None:
    gpu = 'gpu_uuid="GPU-7",gpu_index="0"'
    client = f'namespace="ml",pod="p",{gpu}'
    text = f"""nvshare_gpu_info{{{gpu},gpu_name="H100"}} 1
nvshare_gpu_utilization_ratio{{{gpu}}} 0.5
nvshare_client_info{{{client},client_id="1"}} 1
nvshare_client_managed_allocated_bytes{{{client}}} 1000
nvshare_client_memory_quota_bytes{{{client}}} 4000
nvshare_client_core_quota_config_percent{{{client}}} 30
nvshare_client_throttled{{{client}}} 1
"""
    (card,) = read(text).cards
    assert (card.name, card.utilization) == ("H100", 0.5)
    (tenant,) = card.tenants
    assert (tenant.name, tenant.memory_bytes, tenant.quota_bytes, tenant.limit_percent) == (
        "ml/p",
        1000,
        4000,
        30,
    )
    assert tenant.is_throttled
    both = text + f"gpulimit_gpu_utilization_ratio{{{gpu}}} 0.75\n"
    assert read(both).cards[0].utilization == 0.75


def test_what_is_not_known_is_not_zero() -> None:
    (card,) = read(
        'gpulimit_gpu_lost{gpu_uuid="a",gpu_index="0"} 1\ngpulimit_gpu_power_watts{gpu_uuid="a"} NaN\n'
    ).cards
    assert card.is_lost
    assert card.power_w is card.utilization is card.memory_bytes is None


def test_a_label_s_value_cannot_be_another_host_or_steer_the_screen() -> None:
    evil = r"""x\",host=\"other\",\u001b[2J"""
    text = (
        f'gpulimit_client_info{{tenant="{evil}\x1b[2J\x9b31m\u202e",gpu_uuid="a",gpu_index="0",'
        'host="other",instance="other"} 1\n'
        'gpulimit_gpu_info{gpu_uuid="a",gpu_index="0",gpu_name="\x1b]0;owned\x07H100\\n\\nGPU 9"} 1\n'
    )
    node = read(text)
    assert node.host == "asked"
    assert node.dropped >= 2
    (card,) = node.cards
    (tenant,) = card.tenants
    assert "host=" in tenant.name, "it is text, and no label"
    shown = plain(whole_page([node], ViewState(), history(node), width=120, now_s=0))
    assert all(line.isprintable() or not line for line in shown.split("\n"))
    assert "owned" in shown  # without what would have made it a title
    assert len(shown.split("\n")) == 1 + 1 + 2 + 1 + len(node.problems)


def test_a_page_cannot_have_more_cards_than_fit_and_known_ones_go_on() -> None:
    first = read('gpulimit_gpu_utilization_ratio{gpu_uuid="old",gpu_index="0"} 0.1\n')
    flood = "".join(
        f'gpulimit_gpu_utilization_ratio{{gpu_uuid="new{n}",gpu_index="{n}"}} 0.5\n' for n in range(1000)
    )
    node = read(flood + 'gpulimit_gpu_utilization_ratio{gpu_uuid="old",gpu_index="0"} 0.9\n', before=first)
    assert len(node.cards) == 256
    assert next(c for c in node.cards if c.uuid == "old").utilization == 0.9
    assert node.dropped == 1000 - 255


def test_a_page_full_of_clients_takes_bounded_time() -> None:
    lines = [
        f'gpulimit_pod_gpu_memory_used{{tenant="t{n}",gpu_id="0"}} 5\n'
        f'gpulimit_client_throttled{{tenant="t{n}",gpu_uuid="a",gpu_index="0"}} 1\n'
        for n in range(25_000)
    ]
    begin = time.process_time()
    node = read("".join(lines))
    assert time.process_time() - begin < 10
    assert sum(1 for _ in node.tenants()) == 4096
    assert node.dropped > 20_000
    begin = time.process_time()
    shown = node_rows(replace(node, health="up"), ViewState(), History(), width=200, height=50)
    assert len([row.line for row in shown[:50]]) == 50
    assert time.process_time() - begin < 2, "only lines that are seen are made"


def test_a_daemon_that_is_not_well_says_so() -> None:
    node = read("gpulimit_up 0\ngpulimit_nvml_up 0\n")
    assert node.problems == (
        "its daemon does not divide GPU time",
        "NVML does not answer there",
        "its page tells of no GPU",
    )


def test_eight_hundred_cards_on_a_hundred_nodes_take_less_than_a_second() -> None:
    """About 0.7 s on a slow core; the bound leaves room for a busy machine."""
    spent = best(page_of_a_node(), times=2)
    assert sum(spent.values()) < 3.0, spent


@pytest.fixture
def serve() -> Iterator[Callable[..., list[Exporter]]]:
    """Start exporters, one for each behaviour."""
    with ExitStack() as stack:
        yield lambda *behaviours: [stack.enter_context(exporter(b)) for b in behaviours]


def good(load: float = 0.5) -> Behaviour:
    return page(f'gpulimit_gpu_utilization_ratio{{gpu_uuid="a",gpu_index="0"}} {load}\n'.encode())


def address(one: Exporter) -> str:
    return f"127.0.0.1:{one.listener.getsockname()[1]}"


async def until(
    fleet: Fleet, check: Callable[[tuple[NodeView, ...]], Any], within_s: float = 20.0
) -> tuple[NodeView, ...]:
    end = time.monotonic() + within_s
    while True:
        nodes = await fleet.read()
        if check(nodes):
            return nodes
        assert time.monotonic() < end, nodes
        await asyncio.sleep(0.02)


async def through_a_bad_time(one: Exporter, two: Exporter) -> None:
    fleet = Fleet([address(one), address(two)], interval_s=0.25)
    try:
        nodes = await until(fleet, lambda n: all(x.health == "up" for x in n))
        assert [n.host for n in nodes] == [address(one), address(two)]
        two.behaviour = raw(b"nonsense\r\n\r\n")
        nodes = await until(fleet, lambda n: n[1].health != "up")
        assert nodes[1].health == "stale"
        assert nodes[1].cards[0].utilization == 0.5, "the last good figures are kept for one failed look"
        assert nodes[1].problems
        nodes = await until(fleet, lambda n: n[1].health != "stale")
        assert nodes[1].health == "down"
        assert nodes[1].cards == ()
        assert nodes[0].health == "up", "the other goes on"
        before = two.connections, one.connections
        await asyncio.sleep(1.5)
        assert two.connections - before[0] < one.connections - before[1], "who is down is asked less often"
        two.behaviour = good(0.9)
        nodes = await until(fleet, lambda n: n[1].health == "up")
        assert nodes[1].cards[0].utilization == 0.9
    finally:
        await fleet.close()


def test_up_stale_down_and_up_again(serve) -> None:
    asyncio.run(through_a_bad_time(*serve(good(), good())))


def test_hostile_exporters_do_nothing_to_the_others_and_are_counted(serve) -> None:
    series = b"".join(b'm{a="%d"} 1\n' % n for n in range(80_000))
    flood = good_lines = b'gpulimit_gpu_utilization_ratio{gpu_uuid="a",gpu_index="0"} 0.5\n'
    names = ("good", "endless", "hang", "redirect", "flood", "binary")
    hosts = serve(
        good(),
        endless(b"x" * 65536, head("Content-Type: text/plain")),
        hang,
        page(b"", "Location: http://127.0.0.1:1/", status="302 Found"),
        page(good_lines + series + flood),
        page(bytes(range(256)) * 100),
    )

    async def look() -> tuple[NodeView, ...]:
        fleet = Fleet([address(h) for h in hosts], interval_s=0.5)
        try:
            return await fleet.read_once()
        finally:
            await fleet.close()

    begin = time.monotonic()
    found = dict(zip(names, asyncio.run(look()), strict=True))
    assert time.monotonic() - begin < 20
    assert found["good"].health == "up"
    assert found["flood"].health == "up"
    assert found["flood"].dropped >= 30_000
    assert "samples not taken over" in found["flood"].problems[-1]
    why = {name: found[name].problems[0] for name in ("endless", "hang", "redirect", "binary")}
    assert why == {
        "endless": "its page is too large",
        "hang": "no answer in time",
        "redirect": "wants to send us elsewhere",
        "binary": "its page holds no sample",
    }


def test_two_hosts_may_have_a_card_of_one_uuid(serve) -> None:
    one, two = serve(good(0.1), good(0.9))

    async def look() -> tuple[NodeView, ...]:
        fleet = Fleet([address(one), address(two)])
        try:
            return await fleet.read_once()
        finally:
            await fleet.close()

    nodes = asyncio.run(look())
    assert [n.cards[0].utilization for n in nodes] == [0.1, 0.9]


def test_more_hosts_are_asked_less_often() -> None:
    assert [pace_for(n) for n in (1, 10, 11, 100, 1000)] == [2.0, 2.0, 3.0, 4.0, 6.0]


def test_once_tells_who_was_missing(serve, top, tmp_path) -> None:
    one = serve(good())[0]
    done = top("--once", "--json", "--hosts", address(one), expect=0)
    assert json.loads(done.stdout)["nodes"][0]["host"] == address(one)
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"{address(one)}\n127.0.0.1:1\n")
    done = top("--once", "--hostfile", str(hostfile), expect=3)
    assert "cannot be reached" in done.stdout
    done = top("--once", "--hosts", "127.0.0.1:1", expect=1)
    assert "DOWN" in done.stdout
    done = top("--once", "--csv", "--hostfile", str(hostfile), expect=3)
    assert ",down," in done.stdout
