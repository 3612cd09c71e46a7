# SPDX-License-Identifier: Apache-2.0
"""Nodes that are not there: their pages are a daemon's, and what is wrong with them is seen from outside."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hypervisor.exporter.exporter import Exporter
from hypervisor.exporter.exposition import render
from hypervisor.exporter.families import families_of
from hypervisor.metrics.catalogue import CATALOGUE
from hypervisor.simulator.command import main
from hypervisor.simulator.node import SimulatedNode
from hypervisor.simulator.spec import FAULTS, Plan, mixed
from tests.conftest import ROOT, clean_environ
from tests.metrics.conftest import Scrape, get
from tests.metrics.partitioned import read


def looked_at(plan: Plan, *, seconds: int = 20) -> Scrape:
    """Return a node's page after some simulated seconds."""
    node = SimulatedNode(plan)
    for second in range(seconds):
        made = node.step(1_700_000_000.0 + second)
    return Scrape(render(families_of(made, has_debug_labels=False), "text"))


def test_tenants_share_each_card_and_never_have_more_than_there_is() -> None:
    page = looked_at(Plan("one", cards=2, tenants=3))
    assert len(page.of("client_info")) == 6
    for card in page.labels("gpu_info"):
        uuid = card["gpu_uuid"]
        assert sum(page.of("client_share_achieved_ratio", gpu_uuid=uuid)) <= 1.0001
        assert sum(page.of("client_memory_quota_bytes", gpu_uuid=uuid)) <= page.one(
            "gpu_memory_total_bytes", gpu_uuid=uuid
        )
        used = page.one("gpu_memory_used_bytes", gpu_uuid=uuid)
        assert sum(page.of("client_nvml_used_bytes", gpu_uuid=uuid)) <= used
        assert card["gpu_name"].endswith("(simulated)")
    assert not page.of("gpu_lost", gpu_index="0") or page.one("gpu_lost", gpu_index="0") == 0
    assert page.of("gpu_unregistered_process_count") == [0, 0]


def test_a_node_is_the_same_each_time_and_another_is_another() -> None:
    assert looked_at(Plan("a", cards=1)).text == looked_at(Plan("a", cards=1)).text
    assert looked_at(Plan("a", cards=1)).text != looked_at(Plan("b", cards=1)).text


def test_names_are_all_in_the_catalogue_and_vgpus_and_mig_come_back() -> None:
    known = {metric.full_name for metric in CATALOGUE.values()}
    page = looked_at(Plan("v", cards=3, has_vgpu=True))
    assert {
        family.name for family in families_of(SimulatedNode(Plan("v")).step(1.0), has_debug_labels=False)
    } <= known
    hosts = read(page.text).vgpu_hosts()
    assert [host.policy for host in hosts] == [1, 2, 3]
    assert all(len(host.instances) == 4 and host.host == "v" for host in hosts)
    page = looked_at(Plan("m", cards=2, has_mig=True))
    parted, whole = read(page.text).mig_gpus()
    assert [i.index for i in parted.instances] == [0, 1, 2, 4]
    assert all(i.utilization_ratio is not None for i in parted.instances) and not whole.is_enabled
    assert {x["gpu_id"] for x in page.labels("pod_gpu_sm_util")} == {"0:0", "0:1", "0:2", "0:4", "1"}


@pytest.mark.parametrize(
    ("fault", "is_seen"),
    [
        ("lost-gpu", lambda p: p.one("gpu_lost", gpu_index="0") == 1),
        ("xid", lambda p: p.one("gpu_xid_errors_total", gpu_index="0", xid="48") == 1),
        ("hot", lambda p: p.one("gpu_temperature_celsius", gpu_index="0") > 90),
        ("nvml-down", lambda p: p.one("nvml_up") == 0 and not p.of("gpu_utilization_ratio")),
        ("stranger", lambda p: p.one("gpu_unregistered_process_count", gpu_index="0") == 1),
        ("over-quota", lambda p: sum(p.of("client_memory_quota_exceeded")) == 1),
    ],
)
def test_a_fault_is_seen_in_metrics(fault: Any, is_seen: Callable[[Scrape], bool]) -> None:
    assert not is_seen(looked_at(Plan("f", cards=2)))
    assert is_seen(looked_at(Plan("f", cards=2, faults=frozenset({fault}))))


def test_tenants_get_what_a_scheduler_would_give_them() -> None:
    """Some plan has a tenant whose request is above its share by weight, and which wants all of it."""
    lifted = 0
    for number in range(40):
        node = SimulatedNode(Plan(f"f{number}", cards=2))
        node.step(60.0)
        for tenant in node.tenants:
            here = [t for t in node.tenants if t.gpu is tenant.gpu]
            request = tenant.wish.request_percent / 100
            if sum(t.wish.request_percent for t in here) <= 100 and tenant.wish.wanted(60.0) >= request:
                assert tenant.got >= request - 1e-9
                lifted += tenant.wish.weight / sum(t.wish.weight for t in here) < request
        for card in node.cards:
            assert sum(t.got for t in node.tenants if t.gpu is card.gpu) <= 1 + 1e-9
    assert lifted


def test_twenty_unlike_nodes_are_cheap() -> None:
    """A look at all of them is due each second."""
    plans = [mixed(f"n-{place}", place, Plan("")) for place in range(20)]
    assert {fault for plan in plans for fault in plan.faults} <= FAULTS.keys()
    assert any(plan.has_vgpu for plan in plans) and any(plan.has_mig for plan in plans)
    served = [(SimulatedNode(plan), Exporter()) for plan in plans]
    begin = time.process_time()
    for second in range(3):
        for node, exporter in served:
            exporter.publish(node.step(1e9 + second))
    assert (time.process_time() - begin) / 3 < 0.8


# ---- the command ----


@pytest.fixture
def sim(start_process: Any) -> Iterator[Callable[..., list[str]]]:
    """Start nodes; return their addresses."""

    def start(*arguments: str) -> list[str]:
        argv = [sys.executable, "-P", "-m", "limiter", "sim", "node", *arguments]
        process = start_process(argv, env=clean_environ() | {"PYTHONWARNINGS": "error"}, cwd=ROOT)
        started.append(process)
        line = process.stdout.readline()
        assert line, process.stderr.read()
        return list(line.strip().split(","))

    started: list[subprocess.Popen[str]] = []
    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
        assert "Traceback" not in process.stderr.read()


def free_ports(count: int) -> int:
    """Return the first of some ports in a row that nobody has."""
    for first in range(20_000 + time.time_ns() % 9_000, 60_000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    pytest.skip("no free ports")


def test_nodes_are_served_on_ports_in_a_row(sim) -> None:
    port = free_ports(3)
    hosts = sim("--port", str(port), "--nodes", "3", "--gpus", "2", "--mig", "--metrics-compat", "all-smi")
    assert hosts == [f"127.0.0.1:{port + n}" for n in range(3)]
    pages = [get(f"http://{host}/metrics") for host in hosts]
    assert [status for status, _ in pages] == [200] * 3
    assert len({text for _, text in pages}) == 3
    assert all("all_smi_mig_instance_memory_used_bytes" in text for _, text in pages)
    assert get(f"http://{hosts[0]}/readyz") == (200, "ok\n")


def test_pages_fail_as_they_are_told(sim) -> None:
    port = free_ports(1)
    (host,) = sim("--port", str(port), "--faults", "down,nvml-down")
    with pytest.raises(OSError):
        get(f"http://{host}/metrics")
    assert get(f"http://{host}/readyz")[0] == 503


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "0"], "--port: 0 is not between 1 and 65535"),
        (["--port", "65535", "--nodes", "2"], "--port: 65535 is not between 1 and 65534"),
        (["--port", "9500", "--gpus", "17"], "--gpus: 17 is not between 1 and 16"),
        (["--port", "9500", "--faults", "hot,cold"], "--faults: 'cold' is none of lost-gpu"),
        (["--port", "9500", "--vgpu", "--mig"], "a card is one or the other"),
        (["--port", "9500", "--metrics-compat", "x"], "--metrics-compat: 'x' is none of"),
    ],
)
def test_wrong_use_is_told(arguments: list[str], said: str, capsys: Any) -> None:
    assert main(["node", *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err and out == ""


def test_a_port_that_is_taken_is_told(capsys: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["node", "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1:{port}-{port}" in capsys.readouterr().err
