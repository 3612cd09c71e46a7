# SPDX-License-Identifier: Apache-2.0
"""A real daemon on nodes whose cards are in parts: MIG devices with tenants on them, and vGPU hosts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import ROOT, Built, RunProcess
from tests.metrics.conftest import Node
from tests.metrics.partitioned import read

GIB = 1 << 30
CARD, WHOLE_CARD = "GPU-7af45170-de0c-71ef-81f1-690ff4ea5263", "GPU-81f1690f-f4ea-5263-676e-c7cc22694bfd"
SMALL = "MIG-d8f5d1a2-c004-7653-2365-ea14865f220e"  # 1g.10gb, number 0
MIDDLE = "MIG-6e88e836-6dae-5b63-1274-06f6808f4420"  # 2g.20gb, number 2
LARGE = "MIG-e6cc7cc1-c826-7144-39cd-2f0e5de2d8db"  # 3g.40gb, number 4; there is no number 3
MIG = {"GPULIMIT_SIM_PROFILE": "mig-h100"}
TELL = """
import ctypes, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
sys.exit(getattr(nvml, sys.argv[1])(int(sys.argv[2]), sys.argv[3].encode()))
"""


@pytest.fixture
def tell(built: Built, daemon_env: dict[str, str], run_process: RunProcess) -> Callable[..., None]:
    """Change the simulated machine: tell("mig", 0, "1g.10gb"), tell("vgpu", 1, "add")."""

    def call(what: str, card: int, command: str) -> None:
        argv = [sys.executable, "-c", TELL, f"gpulimit_sim_{what}", str(card), command]
        run_process(argv, env=daemon_env | {"LD_LIBRARY_PATH": str(built.sim)}, expect=0)

    return call


# ---- MIG ----


def test_each_mig_device_has_tenants_a_quota_and_gpu_time_of_its_own(node, work, tenant) -> None:
    served: Node = node(env=MIG)
    load = ("--seconds", "20", "--memory", "300MiB")
    work("-a", *load, memory="10GiB", request=60, env={"CUDA_VISIBLE_DEVICES": MIDDLE})
    work("-b", *load, memory=f"{LARGE}=30GiB", request=70, env={"CUDA_VISIBLE_DEVICES": LARGE})
    work("-c", *load, memory="4GiB", request=80)
    a, b, c = (f"{tenant}-{x}" for x in "abc")
    # Their requests add up to more than a card has: each is on one of its own.
    page = served.until(
        lambda s: (
            all(s.one("client_share_achieved_ratio", tenant=n) or 0 for n in (a, b, c))
            and (s.one("mig_instance_utilization_ratio", mig_uuid=MIDDLE) or 0) > 0.5
            and s
        ),
        within_s=15,
    )
    assert page.one("client_memory_quota_bytes", tenant=a, gpu_uuid=MIDDLE, gpu_index="0") == 10 * GIB
    assert page.one("client_memory_quota_bytes", tenant=b, gpu_uuid=LARGE, gpu_index="0") == 30 * GIB
    assert page.one("client_memory_quota_bytes", tenant=c, gpu_uuid=WHOLE_CARD, gpu_index="1") == 4 * GIB
    for name in (a, b, c):
        assert page.one("client_nvml_used_bytes", tenant=name) > 800 << 20
        assert page.one("client_enforcement_state", tenant=name, state="enforced") == 1
        assert page.one("client_share_entitled_ratio", tenant=name) == 1  # nobody else is there
    for uuid in (MIDDLE, LARGE, WHOLE_CARD):
        assert page.one("scheduler_running_clients", gpu_uuid=uuid) == 1
    profiles = {x["tenant"]: x.get("mig_profile") for x in page.labels("client_info")}
    assert profiles == {a: "2g.20gb", b: "3g.40gb", c: None}
    ids = {x["tenant"]: x["gpu_id"] for x in page.labels("pod_gpu_memory_used")}
    assert ids == {a: "0:2", b: "0:4", c: "1"}
    # The card's own figures stay, once; what NVML does not say of a card in MIG mode is not there.
    assert {x["gpu_uuid"] for x in page.labels("gpu_memory_total_bytes")} == {CARD, WHOLE_CARD}
    assert page.one("gpu_process_count", gpu_uuid=CARD) == 2
    assert page.one("gpu_unregistered_process_count", gpu_uuid=CARD) == 0
    assert page.one("gpu_memory_reserved_bytes", gpu_uuid=CARD) == 40 * GIB
    for name in ("gpu_utilization_ratio", "gpu_compute_requested_ratio", "gpu_compute_unallocated_ratio"):
        assert {x["gpu_uuid"] for x in page.labels(name)} == {WHOLE_CARD}, name
    assert page.one("mig_instance_memory_reserved_bytes", mig_uuid=MIDDLE) == 10 * GIB
    assert page.one("mig_instance_compute_requested_ratio", mig_uuid=LARGE) == pytest.approx(0.7)
    assert page.one("client_energy_joules_total", tenant=a) is None


def test_mig_devices_are_told_with_holes_and_follow_what_happens_to_the_card(node, tell) -> None:
    served: Node = node(env=MIG)
    page = served.until(lambda s: s.of("mig_instance_utilization_ratio") and s)
    (card, whole) = read(page.text).mig_gpus()
    assert (card.gpu_uuid, card.is_enabled, whole.is_enabled) == (CARD, True, False)
    assert [(i.index, i.profile) for i in card.instances] == [
        (0, "1g.10gb"),
        (1, "1g.10gb"),
        (2, "2g.20gb"),
        (4, "3g.40gb"),
    ]
    assert all(i.memory_used_bytes and i.memory_total_bytes for i in card.instances)
    assert all(i.utilization_ratio == 0 for i in card.instances)
    assert [i.gpu_instance_id for i in card.instances] == [7, 8, 9, 11]

    tell("mig", 0, "-,1g.10gb,2g.20gb,1g.10gb")
    parts = served.until(lambda s: len(p := s.labels("mig_instance_info")) == 3 and p)
    assert sorted(p["mig_instance"] for p in parts) == ["1", "2", "3"]
    state = served.daemon.state()
    made = {g["label"]: g["profile"] for g in state["gpus"] if g["card"]}
    assert made == {"0:1": "1g.10gb", "0:2": "2g.20gb", "0:3": "1g.10gb"}, "new ones can have tenants too"

    tell("mig", 0, "off")
    page = served.until(lambda s: s.one("mig_mode", gpu_uuid=CARD) == 0 and s)
    assert not page.of("mig_instance_info") and page.of("gpu_utilization_ratio", gpu_uuid=CARD)
    assert {x["gpu_uuid"] for x in page.labels("scheduler_running_clients")} == {CARD, WHOLE_CARD}


def test_before_hopper_activity_is_not_known_and_everything_else_is(node) -> None:
    page = node(env={"GPULIMIT_SIM_PROFILE": "mig-a100"}).until(lambda s: s.of("mig_instance_info") and s)
    (card,) = read(page.text).mig_gpus()
    assert len(card.instances) == 7 and all(i.memory_total_bytes for i in card.instances)
    assert not page.of("mig_instance_utilization_ratio")


def test_a_field_that_fails_on_mig_devices_is_absent_and_counted(node) -> None:
    """Its devices are all there; what fails on them is absent, and neither 0 nor somebody else's."""
    faults = {"GPULIMIT_SIM_FAULTS": "nvmlDeviceGetGpuInstanceId:fail=999,nvmlGpmMigSampleGet:fail=999"}
    page = node(env=MIG | faults).until(lambda s: s.of("mig_instance_info") and s)
    (card, _) = read(page.text).mig_gpus()
    assert len(card.instances) == 4
    assert all(i.gpu_instance_id is None and i.utilization_ratio is None for i in card.instances)
    assert all(i.memory_total_bytes for i in card.instances)
    assert page.one("sampler_errors_total", sampler="nvml", code="999") > 0


def test_mig_devices_that_may_not_be_read_do_not_hide_whole_cards(node, work, tenant) -> None:
    """Without the permission for MIG devices: whole cards work, and the reason is told."""
    faults = {"GPULIMIT_SIM_FAULTS": "nvmlDeviceGetMigDeviceHandleByIndex:fail=4"}
    served: Node = node(env=MIG | faults)
    work("-c", "--seconds", "10", memory="4GiB")
    page = served.until(lambda s: s.of("client_nvml_used_bytes", tenant=f"{tenant}-c") and s)
    assert page.one("mig_mode", gpu_uuid=CARD) == 1 and not page.of("mig_instance_info")
    assert page.one("sampler_errors_total", sampler="nvml", code="4") > 0
    events = [e["text"] for e in served.daemon.state()["events"] if e["kind"] == "mig_failed"]
    assert events == [f"{CARD}: nvmlDeviceGetMigDeviceHandleByIndex: Insufficient Permissions"]


# ---- vGPU ----


def test_a_vgpu_host_is_told_whole(node) -> None:
    page = node(env={"GPULIMIT_SIM_PROFILE": "vgpu-sriov"}).until(
        lambda s: (
            len(s.of("vgpu_utilization_ratio")) == 8
            and (s.one("vgpu_scheduler_overruns_total", gpu_index="1") or 0) > 1
            and s
        )
    )
    best, equal, fixed = read(page.text).vgpu_hosts()
    assert [h.host_mode for h in (best, equal, fixed)] == ["sriov"] * 3
    assert [h.policy for h in (best, equal, fixed)] == [1, 2, 3]
    assert [(h.is_arr_supported, h.arr_mode) for h in (best, equal, fixed)] == [
        (False, 0),
        (True, 2),
        (True, 1),
    ]
    # Under best effort the driver's parameters mean nothing; with ARR the slice is the second of them.
    assert [h.timeslice_seconds for h in (best, equal, fixed)] == [None, 0.002083333, 0.004166667]
    assert (best.overruns, fixed.overruns) == (0, 0)
    assert best.host == best.instance != ""
    assert [len(h.instances) for h in (best, equal, fixed)] == [4, 2, 2]
    one = best.instances[0]
    assert (one.type_name, one.license_state, one.guest_driver) == ("NVIDIA A40-8Q", "licensed", "570.124.06")
    # More than 4 GiB: pynvml would have cut it to 32 bits.
    assert (one.memory_used_bytes, one.memory_total_bytes) == (6 * GIB, 8 * GIB)
    assert (one.utilization_ratio, one.memory_utilization_ratio) == (0.4, 0.2)
    assert (one.encoder_utilization_ratio, one.decoder_utilization_ratio) == (0.05, 0.03)
    assert one.is_active and len(one.uuid) == len(one.vm_id) == 36
    assert len({v.vgpu_id for h in (best, equal, fixed) for v in h.instances}) == 8


def test_without_sr_iov_and_beside_a_card_that_is_no_host(node) -> None:
    page = node(env={"GPULIMIT_SIM_PROFILE": "vgpu-nonsriov"}).until(lambda s: s.of("vgpu_active") and s)
    (host,) = read(page.text).vgpu_hosts()
    assert (host.gpu_index, host.host_mode, len(host.instances)) == (0, "non_sriov", 2)
    assert {x["gpu_index"] for x in page.labels("gpu_info")} == {"0", "1"}


def test_vgpus_come_and_go_while_it_runs(node, tell) -> None:
    served: Node = node(env={"GPULIMIT_SIM_PROFILE": "vgpu-sriov"})
    served.until(lambda s: len(s.of("vgpu_active")) == 8)
    tell("vgpu", 1, "add")
    tell("vgpu", 0, "drop 0")
    tell("vgpu", 2, "sm 0 0")
    tell("vgpu", 2, "license 1 3")
    tell("vgpu", 2, "driver 1 Not Available")

    def counts(s: Any) -> Any:
        hosts = read(s.text).vgpu_hosts()
        return (
            [len(h.instances) for h in hosts] == [3, 3, 2]
            and hosts[2].instances[0].utilization_ratio == 0
            and hosts[2].instances[1].guest_driver == ""  # what was told last
            and hosts
        )

    _, _, fixed = served.until(counts)
    idle, restricted = fixed.instances
    assert restricted.license_state == "unlicensed_restricted"
    assert idle.guest_driver


@pytest.mark.parametrize("profile", ["h100", "small"])
def test_a_plain_card_says_nothing_of_vgpus_and_nothing_went_wrong(node, profile: str) -> None:
    served: Node = node(env={"GPULIMIT_SIM_PROFILE": profile})
    page = served.until(lambda s: s.of("gpu_utilization_ratio") and s)
    assert "vgpu" not in page.text and "mig_instance" not in page.text
    assert bool(page.of("mig_mode")) == (profile == "h100"), (
        "of a card that could be, so that a change is seen"
    )
    assert not page.of("sampler_errors_total", sampler="nvml")
    assert served.daemon.log.read_text().count("WARNING") == 0


def test_a_driver_that_claims_four_thousand_million_vgpus_is_not_believed(node) -> None:
    env = {"GPULIMIT_SIM_PROFILE": "vgpu-sriov", "GPULIMIT_SIM_SET": "vgpu_claim=4294967295"}
    page = node(env=env).until(
        lambda s: s.of("sampler_errors_total", code="count") and len(s.of("gpu_info")) == 3 and s
    )
    assert not page.of("vgpu_active") and page.one("nvml_up") == 1


def test_a_call_about_vgpus_that_hangs_is_killed_and_the_daemon_goes_on(node) -> None:
    env = {
        "GPULIMIT_SIM_PROFILE": "vgpu-sriov",
        "GPULIMIT_SIM_FAULTS": "nvmlVgpuInstanceGetFbUsage:hang:after=16",
    }
    served: Node = node(env=env, nvml_timeout="300ms")
    assert served.until(lambda s: len(s.of("vgpu_active")) == 8)
    page = served.until(lambda s: s.of("sampler_errors_total", sampler="nvml", code="timeout") and s)
    assert page.of("up") == [1]


@pytest.mark.parametrize("has_daemon", [True, False])
def test_top_shows_tenants_under_their_mig_device(
    node, work, tenant, daemon_env, run_dir, run_process, has_daemon: bool
) -> None:
    served: Node = node(env=MIG)
    load = ("--seconds", "20", "--memory", "300MiB")
    work("-a", *load, memory="6GiB", env={"CUDA_VISIBLE_DEVICES": MIDDLE})
    served.until(lambda s: s.of("client_nvml_used_bytes", tenant=f"{tenant}-a"))
    env = daemon_env | MIG | {"GPULIMIT_SOCKET": str(run_dir / ("daemon.sock" if has_daemon else "none"))}
    argv = [sys.executable, "-P", "-m", "limiter", "top", "--sim", "--once", "--json"]
    ended = run_process(argv, env=env, cwd=ROOT)
    (seen,) = json.loads(ended.stdout)["nodes"]
    assert seen["has_daemon"] == has_daemon
    card, whole = (c for c in seen["cards"] if c["uuid"] in (CARD, WHOLE_CARD))
    on = {m["key"]: [t["name"] for t in m["tenants"] if t["name"].startswith(tenant)] for m in card["migs"]}
    assert on[MIDDLE] == [f"{tenant}-a"]
    assert [m["profile"] for m in card["migs"]] == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]
    assert not whole["migs"]
    mine = [p for p in seen["processes"] if p["tenant"] == f"{tenant}-a"]
    assert len(mine) == 1 and mine[0]["card"] == MIDDLE


def test_a_tenant_stays_on_its_mig_device_when_daemon_and_layout_change(node, work, tell, tenant) -> None:
    """Places in policies are other ones then; its quota and its GPU time go by the UUID."""
    served: Node = node(env=MIG)
    work("-a", "--seconds", "60", "--memory", "300MiB", memory="6GiB", env={"CUDA_VISIBLE_DEVICES": LARGE})
    work("-b", "--seconds", "60", "--memory", "300MiB", memory="3GiB", env={"CUDA_VISIBLE_DEVICES": "0"})
    a, b = f"{tenant}-a", f"{tenant}-b"
    served.until(lambda s: all((s.one("client_gpu_seconds_total", tenant=n) or 0) > 0.2 for n in (a, b)))
    served.daemon.stop()
    tell("mig", 0, "1g.10gb,1g.10gb,2g.20gb,1g.10gb,3g.40gb")
    again: Node = node(env=MIG)
    page = again.until(lambda s: s.one("client_enforcement_state", tenant=a, state="enforced") == 1 and s)
    assert page.one("client_memory_quota_bytes", tenant=a, gpu_uuid=LARGE) == 6 * GIB
    before = {n: page.one("client_gpu_seconds_total", tenant=n) or 0 for n in (a, b)}
    page = again.until(
        lambda s: (
            all((s.one("client_gpu_seconds_total", tenant=n) or 0) > before[n] + 0.5 for n in (a, b)) and s
        )
    )
    assert page.one("client_memory_quota_bytes", tenant=b, gpu_uuid=WHOLE_CARD) == 3 * GIB
    assert page.of("client_allocations_denied_total", tenant=a, reason="quota") == [0]


@pytest.mark.parametrize(
    ("profile", "fault", "family", "count"),
    [  # four polls pass, then each card fails once
        ("mig-h100", "nvmlDeviceGetMigMode:fail=999:after=8:count=2", "mig_instance_info", 4),
        ("mig-h100", "nvmlDeviceGetMemoryInfo:fail=999:after=24:count=2", "mig_instance_info", 4),
        ("vgpu-sriov", "nvmlDeviceGetActiveVgpus:fail=999:after=24:count=3", "vgpu_active", 8),
    ],
)
def test_series_last_through_one_poll_that_fails(
    node, profile: str, fault: str, family: str, count: int
) -> None:
    """Whoever scrapes meanwhile sees no gap."""
    served: Node = node(env={"GPULIMIT_SIM_PROFILE": profile, "GPULIMIT_SIM_FAULTS": fault})
    served.until(lambda s: len(s.of(family)) == count)
    end = time.monotonic() + 15
    seen, after_it = set(), 0
    while after_it < 20 and time.monotonic() < end:
        page = served.metrics()
        seen.add(len(page.of(family)))
        after_it += bool(page.of("sampler_errors_total", sampler="nvml", code="999"))
        time.sleep(0.05)
    assert after_it == 20 and seen == {count}


def test_status_joins_a_mig_devices_books_with_what_the_daemon_says(
    node, work, tenant, daemon_env, run_dir, run_process
) -> None:
    served: Node = node(env=MIG)
    load = ("--seconds", "30", "--memory", "300MiB")
    work("-a", *load, memory="6GiB", weight=7, env={"CUDA_VISIBLE_DEVICES": MIDDLE})
    served.until(lambda s: s.of("client_nvml_used_bytes", tenant=f"{tenant}-a"))
    env = daemon_env | {"GPULIMIT_SOCKET": str(run_dir / "daemon.sock")}
    argv = [sys.executable, "-P", "-m", "limiter", "status", "--json", "--over", "0.2"]
    told = json.loads(run_process(argv, env=env, cwd=ROOT, expect=0).stdout)
    (row,) = (r for r in told["tenants"] if r["tenant"] == f"{tenant}-a")
    assert (row["gpu"], row["weight"], row["source"]) == (MIDDLE, 7, "environment")
