# SPDX-License-Identifier: Apache-2.0
"""Who is there: registering, dying, pids that come back, tenants and their quotas, and who is turned away."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace

import pytest

from hypervisor.errors import Refused
from hypervisor.model import (
    ClientHints,
    EffectiveQuota,
    Gpu,
    GpuUuid,
    Origin,
    ProcessKey,
    RegistrationRequest,
    TenantName,
    device_quota,
)
from hypervisor.node.quota_policy import QuotaSources
from hypervisor.node.registry import MAX_WORKERS, Registry, Tenant
from hypervisor.node.tenant_bounds import TenantBounds
from limiter import quota
from limiter.quota import Quota

GIB = 1 << 30
CARD = Gpu(GpuUuid("GPU-00000000-0000-0000-0000-000000000001"), 0, 80 * GIB)
CARD2 = Gpu(GpuUuid("GPU-00000000-0000-0000-0000-000000000002"), 1, 80 * GIB)
POD = "8f8e6f5c-6b0f-4a57-9d7c-0c7b4f6a2d11"


def said(**parts: object) -> Quota:
    return quota.read({f"GPULIMIT_{k.upper()}": str(v) for k, v in parts.items()})


def request(
    pid: int, tenant: str = "a", *, ticks: int = 1, uid: int = 1000, pod: str | None = None, **parts: object
) -> RegistrationRequest:
    origin = Origin(uid, uid, container_id="c" * 64 if pod else None, pod_uid=pod, cgroup="0::/x")
    return RegistrationRequest(
        ProcessKey(pid, ticks), origin, ClientHints(pid, "python", tenant, said(**parts))
    )


def registry(*gpus: Gpu, **sources: object) -> Registry:
    made = Registry(QuotaSources(**sources), boot="b")  # type: ignore[arg-type]
    made.gpus = {gpu.uuid: gpu for gpu in gpus or (CARD,)}
    return made


def test_registering_again_gives_the_same_worker() -> None:
    node = registry()
    first, _ = node.register(request(10), now_ns=1)
    again, gone = node.register(request(10), now_ns=2)
    assert again == first
    assert gone == []
    assert len(node.workers) == 1


def test_another_process_with_a_known_pid_means_that_the_first_has_gone() -> None:
    node = registry()
    first, _ = node.register(request(10, ticks=1), now_ns=1)
    second, gone = node.register(request(10, ticks=2), now_ns=2)
    assert gone == [first]
    assert second.id != first.id
    assert list(node.workers) == [second.id]


def test_a_view_becomes_a_worker_in_earnest() -> None:
    node = registry()
    view = RegistrationRequest(
        ProcessKey(10, 1), Origin(1000, 1000), ClientHints(tenant="a", is_nvml_only=True)
    )
    first, _ = node.register(view, now_ns=1)
    again, _ = node.register(request(10), now_ns=2)
    assert first.is_nvml_only
    assert not again.is_nvml_only
    assert again.id == first.id


def test_a_tenant_s_quota_is_that_of_its_first_process() -> None:
    node = registry()
    node.register(request(10, memory="4GiB"), now_ns=1)
    node.register(request(11, memory="8GiB"), now_ns=2)
    effective = node.tenants[TenantName("a")].effective
    assert effective.source == "environment"
    assert effective.quota.memory_bytes(80 * GIB) == 4 * GIB


def test_the_next_process_after_the_last_has_gone_starts_anew() -> None:
    node = registry()
    worker, _ = node.register(request(10, memory="4GiB"), now_ns=1)
    node.remove(worker.id, now_ns=5)
    assert [t.name for t in node.empty_tenants(before_ns=5)] == ["a"]
    node.register(request(11, memory="8GiB"), now_ns=6)
    assert node.tenants[TenantName("a")].effective.quota.memory_bytes(80 * GIB) == 8 * GIB
    assert node.empty_tenants(before_ns=99) == []


def test_an_adopted_tenant_keeps_its_quota_when_its_processes_register_again() -> None:
    node = registry()
    before = EffectiveQuota(said(memory="4GiB"), "environment")
    node.adopt(Tenant(TenantName("a"), 1000, before, before.quota), now_ns=1)
    node.register(request(11, memory="2GiB"), now_ns=2)
    assert node.tenants[TenantName("a")].effective == before


def test_strongest_word_wins() -> None:
    sources = QuotaSources(default=said(memory="1GiB"), config={"a": said(memory="2GiB")})
    name, wish = TenantName("a"), said(memory="9GiB")
    assert sources.resolve(name, None, wish).source == "config"
    sources.api[name] = said(memory="3GiB")
    assert sources.resolve(name, None, wish).source == "api"
    sources.pods[name] = said(memory="4GiB")
    assert sources.resolve(name, POD, wish).source == "pod"
    assert sources.resolve(TenantName("b"), None, wish).source == "environment"
    assert sources.resolve(TenantName("b"), None, Quota()) == EffectiveQuota(said(memory="1GiB"), "default")
    assert sources.resolve(TenantName("b"), POD[:-1] + "2", wish).source == "default"


def test_the_environment_only_lowers_what_others_said() -> None:
    sources = QuotaSources(config={"a": said(request=50, weight=100, priority="normal")})
    lower = sources.resolve(TenantName("a"), None, said(request=20, weight=300, priority="low")).quota
    assert (lower.request_percent, lower.weight, lower.priority) == (20, 100, "low")
    higher = sources.resolve(TenantName("a"), None, said(request=90, priority="high")).quota
    assert (higher.request_percent, higher.priority) == (50, "normal")
    assert QuotaSources(admission="fixed").resolve(TenantName("b"), None, said(request=90)).quota == Quota()


def test_an_environment_that_was_followed_has_had_its_say() -> None:
    node = registry()
    first = request(10, memory="4GiB", request=20)
    node.register(first, now_ns=1)
    tenant = node.tenants[TenantName("a")]
    assert node.source_for(first, tenant) == "environment"
    assert node.source_for(request(11, memory="2GiB"), tenant) == "tenant"
    node.sources.api[TenantName("a")] = said(memory="8GiB", request=50)
    assert node.reevaluate_quota(TenantName("a"))
    assert (tenant.effective.source, tenant.effective.quota.request_percent) == ("api", 50)
    assert node.source_for(first, tenant) == "environment"  # so its library does not lower it again
    assert node.source_for(request(11, memory="2GiB"), tenant) == "api"


def test_unknown_processes_are_turned_away_where_the_node_says_so() -> None:
    node = registry(admission="deny", config={"known": said(memory="1GiB")})
    node.register(request(10, "known"), now_ns=1)
    with pytest.raises(Refused, match="tenant stranger has no quota here") as refusal:
        node.register(request(11, "stranger"), now_ns=1)
    assert refusal.value.status == 403
    node.register(request(12, pod=POD), now_ns=1)  # a pod is known: the kubelet admitted it


def test_requests_above_the_whole_gpu_are_refused_with_what_is_free() -> None:
    node = registry()
    node.register(replace(request(10, "a", request=70), at_s=45296), now_ns=1)
    with pytest.raises(
        Refused,
        match=r"b: request of 40% does not fit on GPU 0, where 30% is free; ask for less, or wait with "
        r"GPULIMIT_WAIT=SECONDS for a \(70% since 12:34:56Z\)",
    ) as refusal:
        node.register(request(11, "b", request=40), now_ns=1)
    assert refusal.value.status == 409
    assert TenantName("b") not in node.tenants
    node.register(request(12, "b", request=30), now_ns=1)


@pytest.mark.parametrize(
    ("wish", "weight"), [({}, 100), ({"request": 20}, 100), ({"request": 20, "weight": 7}, 7)]
)
def test_a_request_is_no_weight(wish: dict[str, int], weight: int) -> None:
    assert device_quota(said(**wish), CARD).weight == weight
    assert device_quota(said(**wish), CARD).priority == "normal"


def test_memory_is_reserved_against_the_card() -> None:
    node = registry()
    node.register(request(10, "a", memory="60GiB"), now_ns=1)
    with pytest.raises(Refused, match=r"memory of 30720 MiB does not fit .* 20480 of 81920 MiB is free"):
        node.register(request(11, "b", memory="30GiB"), now_ns=1)
    node.register(request(11, "b"), now_ns=1)  # no quota: nothing is promised


def test_on_a_node_of_two_cards_a_tenant_must_fit_on_one() -> None:
    node = registry(CARD, CARD2)
    for number, (name, card) in enumerate([("a", CARD), ("b", CARD2)]):
        node.register(request(10 + number, name, request=60), now_ns=1)
        node.set_gpus(TenantName(name), frozenset({card.uuid}))
    with pytest.raises(Refused, match="request of 60%"):
        node.register(request(20, "d", request=60), now_ns=1)
    node.register(request(21, "e", request=40), now_ns=1)


def test_a_list_that_names_one_card_is_reserved_there() -> None:
    node = registry(CARD, CARD2)
    node.register(request(10, "a", memory="0=60GiB"), now_ns=1)
    with pytest.raises(Refused, match="on GPU 0"):
        node.register(request(11, "b", memory="0=40GiB"), now_ns=1)
    node.register(request(12, "b", memory="1=40GiB"), now_ns=1)


def test_another_user_cannot_join_a_tenant() -> None:
    node = registry()
    node.register(request(10, uid=1000), now_ns=1)
    with pytest.raises(Refused, match="belongs to another user"):
        node.register(request(11, uid=1001), now_ns=1)
    with pytest.raises(Refused, match="belongs to another user"):
        node.register(request(12, uid=0), now_ns=1)


def test_pods_and_containers_are_tenants_whatever_they_wish() -> None:
    node = registry()
    worker, _ = node.register(request(10, "a", pod=POD), now_ns=1)
    assert worker.tenant == f"pod-{POD}"
    contained = RegistrationRequest(
        ProcessKey(11, 1), Origin(0, 0, container_id="f" * 64), ClientHints(tenant="a")
    )
    assert node.register(contained, now_ns=1)[0].tenant == "container-" + "f" * 12


@pytest.mark.parametrize("wish", ["pod-x", "container-1", "../x", ".hidden", "a b", "é", "x" * 64, "a/b"])
def test_names_that_cannot_be_are_refused(wish: str) -> None:
    with pytest.raises(Refused) as refusal:
        registry().register(
            RegistrationRequest(ProcessKey(1, 1), Origin(0, 0), ClientHints(tenant=wish)), now_ns=1
        )
    assert refusal.value.status == 422
    assert str(refusal.value).isascii()


def test_processes_that_name_no_tenant_are_told_apart_by_user_and_cgroup() -> None:
    node = registry()
    names = set()
    for number, (uid, group) in enumerate([(1, "0::/a"), (1, "0::/b"), (2, "0::/a"), (1, "0::/a")]):
        one = RegistrationRequest(ProcessKey(number + 10, 1), Origin(uid, uid, cgroup=group), ClientHints())
        names.add(node.register(one, now_ns=1)[0].tenant)
    assert len(names) == 3


def test_nobody_can_fill_the_node() -> None:
    node = registry()
    for number in range(MAX_WORKERS):
        node.register(request(1000 + number), now_ns=1)
    with pytest.raises(Refused, match="processes already"):
        node.register(request(9999), now_ns=1)
    for number in range(TenantBounds().max_tenants_per_user - 1):
        node.register(request(20000 + number, f"t{number}"), now_ns=1)
    with pytest.raises(Refused, match=r"tenants with processes already .* oldest are a, t0, t1") as refusal:
        node.register(request(30000, "more"), now_ns=1)
    assert refusal.value.status == 409
    node.register(request(30001, "other", uid=1001), now_ns=1)


def test_a_tenant_without_processes_holds_nothing() -> None:
    node = registry()
    worker, _ = node.register(request(10, "a", request=60, memory="60GiB"), now_ns=1)
    node.remove(worker.id, now_ns=2)
    node.register(request(11, "b", request=60, memory="60GiB"), now_ns=3)
    with pytest.raises(Refused, match=r"a: request of 60% .* for b \(60%"):
        node.register(request(12, "a", request=60), now_ns=4)


def test_a_tenant_that_was_taken_over_holds_what_it_has_until_its_processes_end() -> None:
    node = registry()
    before = EffectiveQuota(said(request=60), "environment")
    node.adopt(Tenant(TenantName("a"), 1000, before, before.quota), now_ns=1)
    with pytest.raises(Refused, match="request of 60%"):
        node.register(request(11, "b", request=60), now_ns=2)
    node.tenants[TenantName("a")].is_adopted = False
    node.register(request(11, "b", request=60), now_ns=3)


def test_the_dead_count_for_no_bound_on_tenants() -> None:
    node = registry()
    for number in range(TenantBounds().max_tenants):
        worker, _ = node.register(request(1000 + number, f"t{number}"), now_ns=1)
        node.remove(worker.id, now_ns=2 + number)
    new = request(9000, "new")
    assert node.blocking_tenant(new) is node.tenants[TenantName("t0")]
    node.forget(TenantName("t0"))
    node.register(new, now_ns=900)
    assert node.blocking_tenant(request(9001, "t7")) is None  # known: it needs no further place


def test_a_name_is_free_for_other_users_once_its_last_process_has_ended() -> None:
    node = registry()
    worker, _ = node.register(request(10, "a", uid=1000), now_ns=1)
    assert node.blocking_tenant(request(11, "a", uid=1001)) is None
    node.remove(worker.id, now_ns=2)
    assert node.blocking_tenant(request(11, "a", uid=1001)) is node.tenants[TenantName("a")]
    assert node.blocking_tenant(request(12, "a", uid=1000)) is None


def test_many_holders_are_counted_and_what_never_fits_names_none() -> None:
    node = registry()
    for number in range(6):
        node.register(request(10 + number, f"t{number}", memory=f"{5 + number}GiB"), now_ns=1)
    with pytest.raises(Refused, match=r"for t5 \(10240 MiB\), t4 .*, t3 .*, t2 .* and 2 more$"):
        node.register(request(30, "new", memory="70GiB"), now_ns=1)
    few = registry(CARD)
    few._overcommit_percent = 50
    with pytest.raises(Refused, match=r"where 40960 of 40960 MiB is free; ask for less$"):
        few.register(request(30, "new", memory="70GiB"), now_ns=1)


def test_a_list_without_a_gpu_of_this_node_is_no_passing_trouble() -> None:
    with pytest.raises(Refused, match=r"names no GPU of this node: 0 \(GPU-") as refusal:
        registry().register(request(10, memory="7=4GiB"), now_ns=1)
    assert refusal.value.status == 422


def test_a_refusal_fits_into_a_header() -> None:
    error = Refused(409, "Zeile\r\nSet-Cookie: x\u00e4" + "x" * 500)
    assert str(error).isascii() and str(error).isprintable()
    assert len(error.header) <= 200
    assert len(str(Refused(409, "x" * 5000))) == 1000


def test_users_that_have_all_they_may_leave_room_for_users_with_none() -> None:
    node = registry()
    pid = itertools.count(1000)
    taken = 0
    for uid in range(2000, 2006):
        with contextlib.suppress(Refused):
            for number in range(TenantBounds().max_tenants_per_user):
                node.register(request(next(pid), f"u{uid}-{number}", uid=uid), now_ns=1)
                taken += 1
    kept = TenantBounds().max_tenants // 4
    assert TenantBounds().max_tenants - kept <= taken < TenantBounds().max_tenants
    with pytest.raises(Refused, match="places are for users with none"):
        node.register(request(next(pid), "one-more", uid=2002), now_ns=1)
    node.register(request(next(pid), "honest", uid=3000), now_ns=1)
    node.register(request(next(pid), "roots", uid=0), now_ns=1)


def test_a_user_has_a_bounded_number_of_processes_and_root_has_not() -> None:
    node = registry()
    node.bounds = TenantBounds(max_processes_per_user=3)
    for number in range(3):
        node.register(request(100 + number, "a"), now_ns=1)
        node.register(request(200 + number, "r", uid=0), now_ns=1)
    with pytest.raises(Refused, match="max_processes_per_user"):
        node.register(request(300, "b"), now_ns=1)
    node.register(request(301, "r", uid=0), now_ns=1)
    node.register(request(302, "c", uid=1001), now_ns=1)
