# SPDX-License-Identifier: Apache-2.0
"""Which quotas a pod names, in the words of several systems. What cannot be read is never nothing."""

from __future__ import annotations

import pytest

from hypervisor.pods.pod import Container, Pod
from hypervisor.pods.quantity import memory_text, size_bytes
from hypervisor.pods.quota import PodQuotas, peak, quotas_of
from limiter.quota import Quota

GIB = 1 << 30


def pod(*containers: Container | str, **annotations: str) -> Pod:
    made = [c if isinstance(c, Container) else Container(c) for c in containers or ("main",)]
    return Pod("u", "u", "default", "p", annotations, tuple(made))


def said(key: str, value: str, *containers: Container | str) -> PodQuotas:
    return quotas_of(pod(*containers, **{key: value}))


def ours(*containers: str, **values: str) -> PodQuotas:
    return quotas_of(
        pod(*containers, **{f"gpulimit.io/{k.replace('__', '.')}": v for k, v in values.items()})
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4Gi", 4 * GIB),
        ("4GiB", 4 * GIB),
        ("1.5Gi", GIB * 3 // 2),
        ("4G", 4 * 10**9),
        ("4e9", 4 * 10**9),
        ("4E9", 4 * 10**9),
        ("2E", 2 * 10**18),
        ("4000M", 4 * 10**9),
        ("5000000k", 5 * 10**9),
        ("4294967296", 4 * GIB),
        ("1048576.5", 1048577),
        (".5Gi", GIB // 2),
        (" 4Gi ", 4 * GIB),
    ],
)
def test_amounts_mean_what_they_mean_in_kubernetes(text: str, size: int) -> None:
    assert size_bytes(text.removesuffix("B")) == size
    assert memory_text(text) == f"{size}B"


@pytest.mark.parametrize(
    "text",
    ["", "4", "500m", "4gi", "4 Gi", "Gi", "-4Gi", "4Gib", "4GB", "1e30", "nan", "4Gi4", "٤Gi", "1" * 99],
)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        memory_text(text or " ")


def test_a_pod_s_own_words() -> None:
    found = ours(
        memory="4Gi",
        compute="30%",
        request="20",
        weight="7",
        priority="High",
        gang="Job",
        **{"memory-wait": "30"},
    )
    assert found.problems == ()
    assert found.pod is not None
    assert found.pod.environ() == {
        "GPULIMIT_MEMORY": f"*={4 * GIB}B",
        "GPULIMIT_COMPUTE": "*=30",
        "GPULIMIT_REQUEST": "20",
        "GPULIMIT_WEIGHT": "7",
        "GPULIMIT_PRIORITY": "high",
        "GPULIMIT_MEMORY_WAIT": "30",
        "GPULIMIT_GANG": "Job",
    }
    assert (found.containers, found.dialect) == ({}, "gpulimit.io")


def test_lists_by_card() -> None:
    found = ours(memory="GPU-3430f778=4Gi,*=50%", compute="GPU-3430f778=30%,*=50")
    assert found.pod is not None
    assert found.pod.memory_bytes(8 * GIB, uuid="GPU-3430f778-0000-0000-0000-000000000000") == 4 * GIB
    assert found.pod.memory_bytes(8 * GIB, uuid="GPU-ffffffff-0000-0000-0000-000000000000") == 4 * GIB
    assert found.pod.compute_percent(uuid="GPU-3430f778-0000-0000-0000-000000000000") == 30


def test_containers_have_quotas_of_their_own_and_the_pod_s_for_the_rest() -> None:
    found = ours("a", "b", "c", memory="8Gi", compute="50", a__memory="1Gi", b__weight="3")
    assert found.pod is not None and found.pod.environ()["GPULIMIT_MEMORY"] == f"*={8 * GIB}B"
    assert {n: q.environ() for n, q in found.containers.items()} == {
        "a": {"GPULIMIT_MEMORY": f"*={GIB}B", "GPULIMIT_COMPUTE": "*=50"},
        "b": {"GPULIMIT_MEMORY": f"*={8 * GIB}B", "GPULIMIT_COMPUTE": "*=50", "GPULIMIT_WEIGHT": "3"},
    }


def test_the_only_container_with_a_quota_stands_for_the_pod() -> None:
    found = ours("a", "b", a__memory="1Gi")
    assert found.pod is not None
    assert found.containers == {}


def test_names_with_dots_are_containers_only_if_they_are_there() -> None:
    assert ours("a", "b", a__memory="1Gi", b__memory="2Gi").containers.keys() == {"a", "b"}
    (problem,) = ours("a", x__memory="1Gi").problems
    assert str(problem) == "gpulimit.io/x.memory: the pod has no container 'x'"


def test_nothing_said_is_nothing() -> None:
    assert quotas_of(pod()) == PodQuotas()
    assert ours(memory="", compute=" ") == PodQuotas()
    assert said("example.org/memory", "4") == PodQuotas()
    assert quotas_of(pod(**{f"gpulimit.io/{k}": "x" for k in ("inject", "gpu", "ld-preload")})) == PodQuotas()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("gpulimit.io/memory", "4", "less than 1 MiB"),
        ("gpulimit.io/memory", "500m", "less than a byte"),
        ("gpulimit.io/memory", "lots", "not an amount"),
        ("gpulimit.io/memory", "101%", "100"),
        ("gpulimit.io/memory", "0=4Gi,0=5Gi", "twice"),
        ("gpulimit.io/memory", "4Gi,", "not an amount"),
        ("gpulimit.io/compute", "0", "1"),
        ("gpulimit.io/compute", "300m", ""),
        ("gpulimit.io/compute", "0.3", ""),
        ("gpulimit.io/request", "101", ""),
        ("gpulimit.io/weight", "0", ""),
        ("gpulimit.io/priority", "urgent", ""),
        ("gpulimit.io/memory-wait", "30s", ""),
        ("gpulimit.io/gang", "job/1", "a name is of letters, digits"),
        ("gpulimit.io/gang", "none", "write off for no gang"),
        ("gpulimit.io/gangs", "job", "gpulimit.io/gang is"),
        ("gpulimit.io/gang-name", "job", "gpulimit.io/gang is"),
        ("gpulimit.io/other.gang", "job", "no container 'other'"),
        ("gpulimit.io/memory-wiat", "30", "gpulimit.io/memory-wait is"),
        ("gpulimit.io/memroy", "4Gi", "gpulimit.io/memory is"),
        ("gpulimit.io/Memory", "4Gi", "gpulimit.io/memory is"),
        ("gpulimit.io/memory-limit", "4Gi", "gpulimit.io/memory is"),
        ("gpulimit.io/main.compute-percent", "4", "gpulimit.io/main.compute is"),
        ("gpulimit.io/other.memory", "4Gi", "no container 'other'"),
        ("nvshare.com/gpu-memory-limit", "many", "not an amount"),
        ("nvshare.com/gpu-core-limit", "0", ""),
    ],
)
def test_what_cannot_be_followed_is_a_trouble_with_its_place(key: str, value: str, reason: str) -> None:
    found = said(key, value)
    assert [t.key for t in found.problems] == [key]
    assert reason in found.problems[0].reason


def test_a_request_above_the_limit_is_a_trouble() -> None:
    found = ours(compute="30", request="40")
    assert len(found.problems) == 1
    assert found.problems[0].key.startswith("gpulimit.io/")


@pytest.mark.parametrize("prefix", ["nvshare.com", "xpushare.com"])
@pytest.mark.parametrize(
    ("memory", "size"), [("4Gi", 4 * GIB), ("4096", 4096 * 10**6), ("4294967296", 4 * GIB), ("4G", 4 * 10**9)]
)
def test_the_annotations_of_nvshare_s_fork(prefix: str, memory: str, size: int) -> None:
    found = quotas_of(pod(**{f"{prefix}/gpu-memory-limit": memory, f"{prefix}/gpu-core-limit": "60"}))
    assert found.pod is not None
    assert found.pod.environ() == {"GPULIMIT_MEMORY": f"*={size}B", "GPULIMIT_COMPUTE": "*=60"}
    assert found.dialect == "nvshare"


def hami(name: str, **limits: str) -> Container:
    return Container(name, limits={f"nvidia.com/{k.replace('_', '-')}": v for k, v in limits.items()})


def test_the_resources_of_hami() -> None:
    found = quotas_of(
        pod(
            hami("a", gpu="1", gpumem="3000", gpucores="30", priority="0"),
            "plain",
            hami("b", gpu="1", gpumem_percentage="50", priority="1"),
            hami("c", gpu="1", gpumem="0", gpucores="100"),
        )
    )
    assert {n: q.environ() for n, q in found.containers.items()} == {
        "a": {
            "GPULIMIT_MEMORY": f"*={3000 << 20}B",
            "GPULIMIT_COMPUTE": "*=30",
            "GPULIMIT_PRIORITY": "high",
        },
        "b": {"GPULIMIT_MEMORY": "*=50%", "GPULIMIT_PRIORITY": "low"},
    }
    assert (found.pod, found.dialect) == (None, "HAMi")


def test_hami_s_3k_is_three_thousand_mebibytes() -> None:
    found = quotas_of(pod(hami("a", gpumem="3k")))
    assert found.pod is not None and found.pod.memory_bytes(80 * GIB) == 3000 << 20


def test_nonsense_in_a_resource_is_a_trouble() -> None:
    (problem,) = quotas_of(pod(hami("a", gpumem="1.5"))).problems
    assert str(problem) == "a: nvidia.com/gpumem: '1.5' is not a whole number"


def test_our_words_put_all_others_aside() -> None:
    made = pod(
        hami("main", gpumem="3000"),
        **{"gpulimit.io/compute": "30", "nvshare.com/gpu-memory-limit": "nonsense"},
    )
    found = quotas_of(made)
    assert found.pod is not None
    assert found.pod.environ() == {"GPULIMIT_COMPUTE": "*=30"}
    assert found.problems == ()


def test_a_gang_alone_leaves_the_quota_to_other_systems_words() -> None:
    made = pod(hami("a", gpumem="3000"), hami("b", gpumem="1000"), **{"gpulimit.io/gang": "job"})
    found = quotas_of(made)
    assert (found.dialect, found.problems) == ("HAMi", ())
    assert found.pod == Quota(gang="job")
    assert {n: q.environ() for n, q in found.containers.items()} == {
        "a": {"GPULIMIT_MEMORY": f"*={3000 << 20}B", "GPULIMIT_GANG": "job"},
        "b": {"GPULIMIT_MEMORY": f"*={1000 << 20}B", "GPULIMIT_GANG": "job"},
    }
    forked = quotas_of(pod(**{"gpulimit.io/gang": "off", "nvshare.com/gpu-core-limit": "60"}))
    assert forked.pod is not None
    assert forked.pod.environ() == {"GPULIMIT_COMPUTE": "*=60", "GPULIMIT_GANG": "off"}


def test_a_container_has_a_gang_of_its_own() -> None:
    found = ours("a", "b", memory="4Gi", gang="job", a__gang="off")
    assert {n: q.gang for n, q in found.containers.items()} == {"a": "off"}
    assert found.pod is not None and found.pod.gang == "job"


def test_beside_the_only_container_with_limits_the_pod_s_gang_is_no_quota() -> None:
    found = quotas_of(pod(hami("a", gpumem="3000"), "b", **{"gpulimit.io/gang": "job"}))
    assert found.pod is not None
    assert found.pod.environ() == {"GPULIMIT_MEMORY": f"*={3000 << 20}B", "GPULIMIT_GANG": "job"}
    assert found.containers == {}


def test_a_gang_that_cannot_be_read_is_a_trouble_beside_other_systems_words() -> None:
    found = quotas_of(pod(hami("a", gpumem="3000"), **{"gpulimit.io/gang": "a b"}))
    assert [t.key for t in found.problems] == ["gpulimit.io/gang"]


@pytest.mark.parametrize(
    ("containers", "most"),
    [
        ([("init", 8), ("side", 4), ("app", 10)], 14),
        ([("side", 4), ("init", 8), ("app", 1)], 12),
        ([("init", 20), ("side", 4), ("app", 10)], 20),
        ([("app", 3), ("app", 4)], 7),
        ([], 0),
    ],
)
def test_what_a_pod_takes_at_most(containers: list[tuple[str, int]], most: int) -> None:
    made = [
        Container(f"{kind}{n}", is_init=kind != "app", is_sidecar=kind == "side")
        for n, (kind, _) in enumerate(containers)
    ]
    amounts = {c.name: amount for c, (_, amount) in zip(made, containers, strict=True)}
    assert peak(pod(*made) if made else Pod("u", "u", "d", "p"), lambda c: amounts[c.name]) == most
