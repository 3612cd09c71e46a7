# SPDX-License-Identifier: Apache-2.0
"""From looks at books to figures of tenants: differences, peaks, averages, and what is not known."""

from __future__ import annotations

import pytest

from hypervisor.metrics.baseline import Baselines
from hypervisor.metrics.clients import ClientAggregator
from hypervisor.metrics.gpus import jain
from hypervisor.metrics.observations import TenantObservation, UsageCounters
from hypervisor.metrics.snapshot import ClientView, Identity
from hypervisor.scheduler.types import MS, SchedParams
from tests.metrics.full import GIB, GPU, MIB, SECOND_NS, look, process

WHO = Identity(tenant="a")
OTHER = Identity(tenant="b")


class Watch:
    """Clients, looked at once a second."""

    def __init__(self, ttl_s: int = 300) -> None:
        self.clients = ClientAggregator(ttl_ns=ttl_s * SECOND_NS)
        self.now_ns = 0

    def step(
        self, *looks: TenantObservation, elapsed_ns: int = SECOND_NS, joules: float = 0.0
    ) -> list[ClientView]:
        is_first, self.now_ns = self.now_ns == 0, self.now_ns + elapsed_ns
        return list(
            self.clients.step(
                looks,
                now_ns=self.now_ns,
                elapsed_ns=0 if is_first else elapsed_ns,
                energy={GPU.uuid: joules},
            )
        )


def test_a_window_is_what_was_spent_since_the_last_look() -> None:
    watch = Watch()
    first = watch.step(look(WHO, spent_ns=5 * SECOND_NS))[0].values
    assert first["client_core_window_usage_ms"] is None
    assert first["client_share_achieved_ratio"] is None
    assert first["client_gpu_seconds_total"] == 5
    second = watch.step(look(WHO, spent_ns=5 * SECOND_NS + 250 * MS))[0].values
    assert second["client_core_window_usage_ms"] == 250
    assert second["client_core_window_limit_ms"] == 500
    assert second["client_core_usage_ratio"] == 0.5
    assert second["client_share_achieved_ratio"] == 0.25


def test_books_begun_anew_and_clocks_that_run_back_are_no_usage() -> None:
    watch = Watch()
    watch.step(look(WHO, spent_ns=SECOND_NS))
    anew = UsageCounters(2, 0, SECOND_NS * 9, 0, 0, 0)
    assert watch.step(look(WHO, spent_ns=0, counters=anew))[0].values["client_share_achieved_ratio"] == 0
    back = UsageCounters(2, 0, SECOND_NS, 0, 0, 0)
    assert watch.step(look(WHO, spent_ns=0, counters=back))[0].values["client_share_achieved_ratio"] == 0


def test_nobody_has_more_than_the_whole_card() -> None:
    watch = Watch()
    watch.step(look(WHO, spent_ns=0), joules=0)
    liar = watch.step(look(WHO, spent_ns=1 << 60), joules=100.0)[0].values
    assert liar["client_share_achieved_ratio"] == 1
    assert liar["client_energy_joules_total"] == 100


def test_numbers_that_cannot_be_true_are_not_served() -> None:
    books = UsageCounters(1, 1 << 63, 1 << 63, 1 << 63, 1 << 63, 1 << 63)
    processes = [process(1, tracked=1 << 47, nvml=None)]
    view = Watch().step(look(WHO, spent_ns=0, counters=books, processes=processes))[0]
    for name in ("gpu_seconds_total", "throttled_seconds_total", "managed_allocated_bytes"):
        assert view.values[f"client_{name}"] is None
    assert view.denied == {}
    assert view.pod["pod_gpu_memory_used"] is None


def test_throttled_means_a_tenth_of_the_window() -> None:
    watch = Watch()
    watch.step(look(WHO, spent_ns=0, throttled_ns=0, waiting=0))
    little = watch.step(look(WHO, spent_ns=1, throttled_ns=50 * MS, waiting=0))[0]
    assert little.values["client_throttled"] == 0
    much = watch.step(look(WHO, spent_ns=2, throttled_ns=250 * MS, waiting=0))[0]
    assert much.values["client_throttled"] == 1


def test_who_waits_all_the_time_for_nothing_is_starved_and_throttled() -> None:
    """A wait is only booked when it ends."""
    watch = Watch()
    watch.step(look(WHO, spent_ns=0, waiting=1))
    view = watch.step(look(WHO, spent_ns=0, waiting=1))[0]
    assert view.values["client_throttled"] == 1
    assert watch.clients.windows["a", GPU.uuid].is_starved


def test_energy_goes_by_gpu_time_and_what_idling_costs_is_nobodys() -> None:
    watch = Watch()
    watch.step(look(WHO, spent_ns=0), look(OTHER, spent_ns=0))
    one, other = watch.step(look(WHO, spent_ns=250 * MS), look(OTHER, spent_ns=500 * MS), joules=400.0)
    assert one.values["client_energy_joules_total"] == 100
    assert other.values["client_energy_joules_total"] == 200


def test_entitlements_are_of_those_active_now() -> None:
    watch = Watch()
    free = SchedParams(weight=100)
    watch.step(look(WHO, spent_ns=0, terms=free), look(OTHER, spent_ns=0, terms=free, waiting=0))
    one, idle = watch.step(look(WHO, spent_ns=MS, terms=free), look(OTHER, spent_ns=0, terms=free, waiting=0))
    assert one.values["client_share_entitled_ratio"] == 1
    assert one.values["client_core_quota_effective_percent"] == 100
    assert idle.values["client_share_entitled_ratio"] == 0.5, "what would be its due"


def test_a_suspended_tenant_may_have_nothing() -> None:
    view = Watch().step(look(WHO, spent_ns=0, terms=SchedParams(is_suspended=True)))[0]
    assert view.values["client_core_quota_effective_percent"] == 0
    assert view.values["client_core_quota_config_percent"] == 100


def test_peaks_stay_and_launches_outlive_their_process() -> None:
    watch = Watch()
    watch.step(look(WHO, spent_ns=0, processes=[process(1, tracked=GIB, nvml=GIB)]))
    view = watch.step(look(WHO, spent_ns=0, processes=[process(2, tracked=MIB, nvml=GIB)]))[0]
    assert view.values["client_managed_allocated_bytes"] == MIB
    assert view.values["client_managed_allocated_peak_bytes"] == GIB
    assert view.launches == {"kernel": 20, "cooperative": 0, "graph": 4}


@pytest.mark.parametrize(
    ("used", "nvml", "quota", "is_exceeded"),
    [(GIB, GIB, 0, 0), (GIB, GIB, GIB, 0), (GIB + 1, GIB, GIB, 1), (0, GIB + 1, GIB, 1), (0, None, GIB, 0)],
)
def test_a_quota_is_exceeded_by_books_or_by_the_drivers_word(used, nvml, quota, is_exceeded) -> None:
    books = UsageCounters(1, used, 0, 0, 0, 0)
    seen = look(
        WHO,
        spent_ns=0,
        counters=books,
        processes=[process(1, tracked=0, nvml=nvml)],
        memory_quota_bytes=quota,
    )
    assert Watch().step(seen)[0].values["client_memory_quota_exceeded"] == is_exceeded


def test_the_last_figures_of_books_that_cannot_be_read_are_served_for_a_while() -> None:
    watch = Watch(ttl_s=2)
    watch.step(look(WHO, spent_ns=3 * SECOND_NS))
    gone = look(WHO, spent_ns=0, counters=None, state="degraded")
    view = watch.step(gone)[0]
    assert (view.values["client_gpu_seconds_total"], view.state) == (3, "degraded")
    watch.step(gone)
    assert "client_gpu_seconds_total" not in watch.step(gone)[0].values
    assert watch.step(gone)[0].values["client_memory_quota_bytes"] == 4 * GIB


def test_the_baseline_is_a_slow_average_taken_while_little_is_held() -> None:
    baselines, key = Baselines(), (1, 7, GPU.uuid)
    baselines.note(key, 10 * GIB, 9 * GIB)
    assert baselines.of(key) is None
    baselines.note(key, 600 * MIB, 100 * MIB)
    assert baselines.of(key) == 500 * MIB
    baselines.note(key, 700 * MIB, 100 * MIB)
    assert baselines.of(key) == 520 * MIB
    baselines.note(key, 90 * GIB, 0)
    assert baselines.of(key) == 4 * GIB
    small, other = (2, 7, GPU.uuid), (1, 8, GPU.uuid)
    baselines.note(small, 1, 0)
    assert baselines.of(small) == 256 * MIB
    assert baselines.of(other) is None, "another process with the pid"
    baselines.keep({(2, 7)})
    assert baselines.of(key) is None


def test_processes_of_a_tenant_have_their_own_memory_and_time() -> None:
    watch = Watch()
    rows = [process(1, tracked=GIB, nvml=2 * GIB, spent_ns=SECOND_NS), process(2, tracked=0, nvml=None)]
    looks = [look(WHO, spent_ns=3 * SECOND_NS, processes=rows)]
    one, two = watch.clients.processes(looks, watch.step(*looks))
    assert (one.host_pid, one.values["client_nvml_used_bytes"]) == (1, 2 * GIB)
    assert one.values["client_gpu_seconds_total"] == 1
    assert two.values["client_nvml_used_bytes"] is None
    assert two.values["client_memory_quota_bytes"] == 4 * GIB


def test_fairness_is_of_those_who_wanted_more() -> None:
    watch = Watch()
    free = SchedParams()
    names = [Identity(tenant=name) for name in "abc"]
    watch.step(*(look(who, spent_ns=0, terms=free) for who in names))
    looks = [
        look(names[0], spent_ns=300 * MS, throttled_ns=SECOND_NS, terms=free),
        look(names[1], spent_ns=300 * MS, throttled_ns=SECOND_NS, terms=free),
        look(names[2], spent_ns=1, throttled_ns=0, terms=free),
    ]
    watch.step(*looks)
    windows, entitled = watch.clients.windows, watch.clients.entitled
    assert jain(looks, windows, entitled) == pytest.approx(1)
    assert jain(looks[2:], windows, entitled) is None
