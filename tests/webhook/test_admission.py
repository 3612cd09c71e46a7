# SPDX-License-Identifier: Apache-2.0
"""What the webhook changes in pods, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hypervisor.webhook.admission import Rules, review

RESOURCE = "gpulimit.io/gpu"
RULES = Rules()


def pod(
    *containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    made = list(containers) or [{"name": "main", "image": "i"}]
    return {
        "metadata": {"generateName": "p-", "annotations": annotations},
        "spec": {"containers": made, **spec},
    }


def container(name: str = "main", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "i", **more}


def asking(number: str = "1", resource: str = RESOURCE) -> dict[str, Any]:
    return {"resources": {"limits": {resource: number}}}


def apply(item: dict[str, Any], rules: Rules = RULES) -> dict[str, Any]:
    """Return a pod as the API server would have it: an independent reading of JSON Patch."""
    verdict = review(item, rules)
    assert not verdict.refusal
    whole = copy.deepcopy(item)
    for patch in verdict.patches:
        *parents, last = [p.replace("~1", "/").replace("~0", "~") for p in patch["path"].split("/")[1:]]
        at: Any = whole
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if isinstance(at, list) and last == "-":
            at.append(patch["value"])
        elif isinstance(at, list) and patch["op"] == "add":
            at.insert(int(last), patch["value"])
        elif isinstance(at, list):
            at[int(last)] = patch["value"]
        else:
            at[last] = patch["value"]
    return whole


def slices(item: dict[str, Any]) -> list[str]:
    return [c.get("resources", {}).get("limits", {}).get(RESOURCE, "") for c in item["spec"]["containers"]]


def test_a_plain_pod_is_left_alone() -> None:
    assert review(pod(), RULES).patches == []


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ({"memory": "30%"}, "3"),
        ({"memory": "25%"}, "3"),
        ({"memory": "1%"}, "1"),
        ({"memory": "100%"}, "10"),
        ({"compute": "50"}, "1"),
        ({"request": "40", "memory": "10%"}, "4"),
        ({"weight": "5"}, "1"),
    ],
)
def test_annotations_ask_for_slices(said: dict[str, str], number: str) -> None:
    annotated = pod(annotations={f"gpulimit.io/{k}": v for k, v in said.items()})
    made = apply(annotated)
    assert slices(made) == [number]
    assert made["spec"]["containers"][0]["resources"]["requests"] == {RESOURCE: number}
    assert review(made, RULES).patches == [], "it is changed once, however often it is asked"


def test_a_gang_alone_asks_for_no_slices() -> None:
    assert review(pod(annotations={"gpulimit.io/gang": "job"}), RULES).patches == []
    assert slices(apply(pod(annotations={"gpulimit.io/gang": "job", "gpulimit.io/memory": "30%"}))) == ["3"]


def test_bytes_are_counted_where_the_card_is_known() -> None:
    annotated = pod(annotations={"gpulimit.io/memory": "20GiB"})
    assert slices(apply(annotated, Rules(card_bytes=80 << 30))) == ["3"]
    verdict = review(annotated, RULES)
    assert verdict.warnings and slices(apply(annotated)) == ["1"]


def test_each_container_is_asked_for_by_its_own_annotation() -> None:
    said = {"gpulimit.io/b.memory": "30%", "gpulimit.io/c.memory": "50%"}
    made = apply(pod(container("a"), container("b"), container("c"), annotations=said))
    assert slices(made) == ["", "3", "5"]


def test_a_quota_of_the_pod_is_asked_for_by_its_first_container() -> None:
    made = apply(
        pod(container("a"), container("b"), annotations={"gpulimit.io/memory": "20%"}),
    )
    assert slices(made) == ["2", ""]


def test_who_asks_is_not_helped() -> None:
    said = {"gpulimit.io/memory": "90%"}
    assert review(pod(container("a"), container("b", **asking("2")), annotations=said), RULES).patches == []
    assert review(pod(container("a", **asking("1", "nvidia.com/gpu")), annotations=said), RULES).patches == []


def test_other_resources_of_a_container_stay() -> None:
    resources = {"resources": {"limits": {"cpu": "2"}, "requests": {"memory": "1Gi"}}}
    made = apply(pod(container(**resources), annotations={"gpulimit.io/memory": "10%"}))
    assert made["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "2", RESOURCE: "1"},
        "requests": {"memory": "1Gi", RESOURCE: "1"},
    }


@pytest.mark.parametrize(
    "said",
    [{"gpulimit.io/memory": "much"}, {"gpulimit.io/memroy": "1GiB"}, {"gpulimit.io/gang": "train/1"}],
)
def test_a_quota_that_cannot_be_read_is_refused(said: dict[str, str]) -> None:
    assert next(iter(said)) in review(pod(annotations=said), RULES).refusal


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (
            {"containers": [container(**asking()), container("bad", securityContext={"privileged": True})]},
            "bad",
        ),
        ({"initContainers": [container("init", securityContext={"privileged": True})]}, "init"),
        ({"ephemeralContainers": [container("debug", securityContext={"privileged": True})]}, "debug"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/dev/nvidia0"}}]}, "/dev/nvidia0"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/dev/"}}]}, "/dev"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "/"),
        ({"hostPID": True}, "hostPID"),
    ],
)
def test_what_reaches_past_its_cards_is_refused(spec: dict[str, Any], named: str) -> None:
    item = pod(container(**asking()))
    item["spec"] |= spec
    assert named in review(item, RULES).refusal
    assert review(item, Rules(may_be_privileged=True)).refusal == ""
    item["spec"]["containers"] = [c | {"resources": {}} for c in item["spec"]["containers"]]
    assert review(item, RULES).refusal == "", "who asks for no card is not our business"


def test_images_keep_what_they_preload() -> None:
    said = {"gpulimit.io/memory": "10%", "gpulimit.io/ld-preload": "/usr/lib/libjemalloc.so"}
    env = [{"name": "A", "value": "1"}, {"name": "LD_PRELOAD", "value": "/own.so"}]
    first = apply(pod(annotations=said))["spec"]["containers"][0]["env"]
    assert first == [
        {"name": "LD_PRELOAD", "value": "/usr/lib/libjemalloc.so:/usr/lib/gpulimit/libgpulimit.so"}
    ]
    second = apply(pod(container(env=env), annotations=said))["spec"]["containers"][0]["env"]
    assert second[1]["value"] == "/own.so:/usr/lib/libjemalloc.so:/usr/lib/gpulimit/libgpulimit.so"


def test_cards_are_hidden_from_those_who_ask_for_none() -> None:
    rules = Rules(hides_others=True)
    made = apply(
        pod(container("a"), container("b", **asking()), container("c", **asking("1", "nvidia.com/gpu"))),
        rules,
    )
    assert [c.get("env") for c in made["spec"]["containers"]] == [
        [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        None,
        None,
    ]


@pytest.mark.parametrize(
    "item", [{}, {"metadata": None, "spec": None}, {"spec": {"containers": [1, None, "x"]}}]
)
def test_nonsense_is_left_to_the_api_server(item: dict[str, Any]) -> None:
    assert review(item, RULES).patches == []
