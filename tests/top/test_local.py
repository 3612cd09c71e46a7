# SPDX-License-Identifier: Apache-2.0
"""The local node: by its daemon, and without one."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import pytest

from hypervisor.api.serializers import observed_data
from hypervisor.top import daemon_state
from tests.conftest import ROOT
from tests.daemon.conftest import eventually, needs_root
from tests.metrics import full

GIB, MIB = 1 << 30, 1 << 20
MIDDLE = "MIG-6e88e836-6dae-5b63-1274-06f6808f4420"
"""In the profile mig-h100."""


def look(top: Any, *arguments: str) -> dict[str, Any]:
    done = top("--once", "--json", *arguments)
    assert done.stderr == ""
    (node,) = json.loads(done.stdout)["nodes"]
    return dict(node, status=done.returncode)


def tenants(node: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {t["name"]: t for card in node["cards"] for t in card["tenants"]}


def test_with_a_daemon_everything_is_its_word(node, work, top, tenant) -> None:
    served = node()
    work("-a", "--seconds", "40", "--memory", "300MiB", memory="4GiB", compute=50)
    work("-b", "--seconds", "40", "--memory", "100MiB", memory="2GiB", weight=300)
    work("-c", "--seconds", "40", "--idle", "--memory", "10MiB", request=20)
    a, b, c = (f"{tenant}-{x}" for x in "abc")
    served.until(
        lambda s: (
            all(s.one("client_share_achieved_ratio", tenant=n) for n in (a, b))
            and s.of("client_info", tenant=c)
        )
    )
    seen = eventually(
        lambda: (n := look(top)) and {a, b, c} <= tenants(n).keys() and tenants(n)[b]["got"] and n
    )
    assert (seen["health"], seen["status"], seen["has_daemon"]) == ("up", 0, True)
    (card,) = seen["cards"]
    assert card["power_w"] > 0
    assert card["temperature_c"] > 0
    assert card["unregistered"] == 0
    of = tenants(seen)
    assert of[a]["quota_bytes"] == 4 * GIB
    assert of[c]["quota_bytes"] is None
    assert of[a]["memory_bytes"] >= 300 * MIB
    assert of[a]["limit_percent"] == 50
    assert of[b]["weight"] == 300
    assert of[b]["due"] > of[a]["due"] > 0
    assert of[a]["now"] == of[b]["now"] == "runs"
    assert of[c]["now"] == "idle"
    assert of[a]["enforcement"] == "enforced"
    assert of[a]["processes"] == 1
    pids = {p["tenant"]: p for p in seen["processes"]}
    assert pids.keys() == {a, b, c}
    assert "load" in pids[a]["command"]
    assert pids[a]["memory_bytes"] >= 300 * MIB
    status, _, _ = served.daemon.ask("POST", f"/v1/tenants/{a}/suspend")
    assert status == 204
    assert tenants(look(top))[a]["now"] == "suspended"


def test_shares_are_those_of_a_second_or_more(node, work, top, tenant) -> None:
    """Two that keep the card busy, weights 1 : 3; who is looked at has all of the card or nothing."""
    served = node()
    work("-a", "--seconds", "40", "--memory", "100MiB", memory="4GiB", weight=100)
    work("-b", "--seconds", "40", "--memory", "100MiB", memory="4GiB", weight=300)
    a, b = f"{tenant}-a", f"{tenant}-b"
    served.until(lambda s: all(s.one("client_share_achieved_ratio", tenant=n) for n in (a, b)))
    time.sleep(1)  # both have begun
    tries = []
    for _ in range(2):
        seen = look(top)
        got = {row["name"]: row["got"] for row in tenants(seen).values()}
        of_processes = {p["tenant"]: p["got"] for p in seen["processes"]}
        tries.append((got, of_processes))
        if all(abs(x[a] - 0.25) <= 0.08 and abs(x[b] - 0.75) <= 0.08 for x in (got, of_processes)):
            return
    pytest.fail(str(tries))


def test_without_a_daemon_it_says_so_and_shows_what_there_is(work, top, tenant) -> None:
    work("", "--seconds", "40", "--memory", "300MiB", memory="4GiB", compute=50, socket="", wait="0")
    seen = eventually(lambda: (n := look(top)) and tenants(n).get(tenant, {}).get("got") and n, within_s=25)
    assert (seen["health"], seen["status"], seen["has_daemon"]) == ("partial", 3, False)
    assert "no daemon" in seen["problems"][0]
    # Books are the machine's: there may be those of others, too.
    card = next(c for c in seen["cards"] if any(t["name"] == tenant for t in c["tenants"]))
    assert card["name"].startswith("NVIDIA H100")
    one = tenants(seen)[tenant]
    assert one["enforcement"] == "standalone"
    assert one["quota_bytes"] == 4 * GIB
    assert 0.2 < one["got"] < 0.8
    assert one["due"] is None
    (process,) = (p for p in seen["processes"] if p["tenant"].startswith(tenant))
    assert process["tenant"] == tenant
    assert process["got"] == pytest.approx(one["got"], abs=0.05)
    text = top("--once", "--width", "80").stdout
    assert "no daemon" in text
    assert tenant[:10] in text


def test_without_anything_there_is_nothing_and_why(top, monkeypatch, top_env, run_process) -> None:
    argv = [sys.executable, "-P", "-m", "hypervisor.top", "--once"]
    done = run_process(argv, env=top_env)
    assert done.returncode in (1, 3)  # 3 if others' programs keep books here
    assert "no daemon" in done.stdout
    assert "NVML Shared Library Not Found" in done.stdout


def test_a_stranger_on_the_card_is_a_process_without_quota(node, work, top, tenant) -> None:
    node()
    work("", "--seconds", "40", "--idle", is_limited=False)
    seen = eventually(lambda: (n := look(top)) and n["cards"][0]["unregistered"] and n)
    (process,) = seen["processes"]
    assert process["tenant"] == ""
    assert process["user"] == ("root" if os.geteuid() == 0 else process["user"])


def test_a_lost_card_is_said(node, work, top, xid, tenant) -> None:
    served = node()
    xid(0, 79)
    served.until(lambda s: s.one("gpu_lost") == 1)
    seen = look(top)
    assert seen["cards"][0]["is_lost"] is True
    assert (seen["health"], seen["status"]) == ("partial", 3)
    assert "LOST" in top("--once").stdout


@needs_root()
def test_others_see_their_own_tenants_only(node, work, tenant, run_dir, run_process) -> None:
    served = node()
    work("", "--seconds", "40", "--idle", "--memory", "10MiB")
    served.until(lambda s: s.of("client_info", tenant=tenant))
    script = (
        "import encodings.idna, json, os; from limiter import daemon_client; os.setgroups([]); "
        "os.setgid(1000); os.setuid(1000); print(json.dumps(daemon_client.ask('GET', '/v1/state')))"
    )
    env = os.environ | {"GPULIMIT_SOCKET": str(run_dir / "daemon.sock")}
    done = run_process([sys.executable, "-c", script], env=env, cwd=ROOT, expect=0)
    state = json.loads(done.stdout)
    assert tenant not in done.stdout
    assert state["observed"]["clients"] == []
    assert len(state["observed"]["gpus"]) == 1
    assert "processes" not in state
    assert daemon_state.is_in_sight(state)
    state["daemon"]["start_ticks"] += 1  # as it would be seen from another pid namespace
    assert not daemon_state.is_in_sight(state)
    assert daemon_state.may_change(state) is False
    assert len(daemon_state.cards_in(state)) == 1


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"observed": 7, "gpus": "x", "tenants": [1, {"gpus": [None]}], "processes": {}},
        {
            "observed": {
                "gpus": [{"uuid": 3, "values": {"gpu_power_watts": "hot"}}],
                "clients": [{"values": []}],
            }
        },
        {"gpus": [{"uuid": "GPU-1", "index": -4, "memory_bytes": float("nan")}]},
        {
            "daemon": {"not_ready": "all"},
            "tenants": [{"tenant": "a", "workers": [{"host_pid": "x", "gpus": 1}]}],
        },
    ],
)
def test_an_answer_of_another_shape_breaks_nothing(state: dict[str, Any]) -> None:
    """A daemon of another version, or something else on its socket."""
    daemon_state.cards_in(state)
    assert daemon_state.problems_in(state) == ()
    list(daemon_state.held_in(state))


def test_a_daemon_that_has_not_looked_yet_still_has_cards_and_tenants() -> None:
    gpu = {
        "uuid": "GPU-1",
        "present": True,
        "memory_used_bytes": 5,
        "memory_limited": True,
        "memory_limit_bytes": 9,
    }
    state = {
        "gpus": [
            {
                "uuid": "GPU-1",
                "index": 0,
                "name": "H100",
                "memory_bytes": 100,
                "memory_used_bytes": 7,
                "error": "",
            }
        ],
        "tenants": [
            {"tenant": "a", "pod": "x/y", "suspended": False, "problem": "", "gpus": [gpu], "workers": []}
        ],
        "observed": {"gpus": [], "clients": []},
    }
    (card,) = daemon_state.cards_in(state)
    assert (card.memory_bytes, card.total_bytes) == (7, 100)
    (tenant,) = card.tenants
    assert (tenant.key, tenant.name, tenant.memory_bytes, tenant.quota_bytes) == ("a", "x/y", 5, 9)


def test_a_tenant_on_a_mig_device_is_shown_there(node, work, top, daemon_env, tenant) -> None:
    """By the daemon, by its metrics, and without one."""
    daemon_env["GPULIMIT_SIM_PROFILE"] = "mig-h100"
    served = node()
    daemon_env["CUDA_VISIBLE_DEVICES"] = MIDDLE
    work("", "--seconds", "60", "--memory", "300MiB", memory="4GiB")
    served.until(lambda s: s.of("client_share_achieved_ratio", tenant=tenant))

    def parts(node: dict[str, Any]) -> dict[str, list[str]]:
        return {
            mig["key"]: [t["name"] for t in mig["tenants"]]
            for card in node["cards"]
            for mig in card["migs"]
            if any(t["name"] == tenant for t in mig["tenants"])
        }

    seen = eventually(lambda: (n := look(top)) and parts(n) and n, within_s=20)
    assert parts(seen) == {MIDDLE: [tenant]}
    assert [card["index"] for card in seen["cards"]] == [0, 1], "MIG devices are no cards"
    assert seen["cards"][0]["mig_mode"] is True
    mine = [p for p in seen["processes"] if p["tenant"] == tenant]
    assert [(p["card"], p["card_index"]) for p in mine] == [(MIDDLE, 0)], "it is there once"
    remote = look(top, "--hosts", served.address)
    assert parts(remote) == parts(seen)
    assert [card["index"] for card in remote["cards"]] == [0, 1]
    served.daemon.stop()
    alone = look(top)
    assert not alone["has_daemon"]
    assert MIDDLE in {mig["key"] for card in alone["cards"] for mig in card["migs"]}


def test_vgpus_are_shown_on_hosts_that_have_some(node, top, daemon_env) -> None:
    daemon_env["GPULIMIT_SIM_PROFILE"] = "vgpu-sriov"
    served = node()
    served.until(lambda s: s.of("vgpu_host_mode"))
    seen, remote = look(top), look(top, "--hosts", served.address)
    for one in (seen, remote):
        vgpus = [vgpu for card in one["cards"] for vgpu in card["vgpus"]]
        assert len(vgpus) == 8
        assert all(vgpu["vm"] and vgpu["type"].startswith("NVIDIA A40-") for vgpu in vgpus)
        assert {card["vgpu_host"]["mode"] for card in one["cards"]} == {"SR-IOV"}
    served.daemon.stop()
    assert sum(len(card["vgpus"]) for card in look(top)["cards"]) == 8


def test_who_sees_some_tenants_sees_no_virtual_machines_nor_others_mig_devices() -> None:
    snapshot = full.snapshot()
    everything, some = observed_data(snapshot, None), observed_data(snapshot, {"batch"})
    assert everything["vgpu_hosts"]
    assert any(gpu["instances"] for gpu in everything["mig_gpus"])
    assert {client["tenant"] for client in some["clients"]} == {"batch"}
    assert not any(gpu["instances"] for gpu in some["mig_gpus"])
    text = json.dumps(some)
    assert full.partitioned.VGPU.vm_id not in text
    assert "pod-6f1" not in text
