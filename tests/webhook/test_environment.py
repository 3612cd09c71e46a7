# SPDX-License-Identifier: Apache-2.0
"""What the webhook makes of every shape of a container's environment, as a kubelet would then read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from hypervisor.webhook.admission import Rules, judge_debugging, review
from tests.webhook.test_admission import apply, asking, container, pod

OURS = "/usr/lib/gpulimit/libgpulimit.so"
SAID = {"gpulimit.io/ld-preload": "/image.so"}
CONFIG_MAPS = {"cm": {"preload": "/from/map.so", "LD_PRELOAD": "/bulk.so", "PRELOAD": "/prefixed.so"}}
REFERENCE = {"configMapKeyRef": {"name": "cm", "key": "preload"}}
MISSING = {"configMapKeyRef": {"name": "cm", "key": "absent", "optional": True}}


def environment_of(one: Mapping[str, Any]) -> dict[str, str]:
    """Return a container's variables: an independent reading of how the kubelet makes them."""
    made: dict[str, str] = {}
    for source in one.get("envFrom") or ():
        for key, value in CONFIG_MAPS[source["configMapRef"]["name"]].items():
            made[source.get("prefix", "") + key] = value
    for entry in one.get("env") or ():
        value = entry.get("value") or ""
        if value:
            value = re.sub(r"\$\((\w+)\)", lambda m: made.get(m[1], m[0]), value)
        elif "valueFrom" in entry:
            reference = entry["valueFrom"]["configMapKeyRef"]
            if reference["key"] not in CONFIG_MAPS[reference["name"]]:
                assert reference.get("optional"), "the container would not start"
                continue
            value = CONFIG_MAPS[reference["name"]][reference["key"]]
        made[entry["name"]] = value
    return made


def entry(value: str | None = None, name: str = "LD_PRELOAD", **more: Any) -> dict[str, Any]:
    return {"name": name, **({} if value is None else {"value": value}), **more}


SHAPES = {
    "none": (None, ""),
    "null": ({"env": None}, ""),
    "an empty list": ({"env": []}, ""),
    "other variables": ({"env": [entry("1", "A")]}, ""),
    "a value": ({"env": [entry("/own.so")]}, "/own.so"),
    "a value with spaces": ({"env": [entry("/own.so /two.so")]}, "/own.so:/two.so"),
    "an empty value": ({"env": [entry("")]}, ""),
    "no value": ({"env": [entry()]}, ""),
    "a value of null": ({"env": [{"name": "LD_PRELOAD", "value": None}]}, ""),
    "a reference": ({"env": [entry(valueFrom=REFERENCE)]}, "/from/map.so"),
    "a reference of null": ({"env": [entry("/own.so", valueFrom=None)]}, "/own.so"),
    "an optional reference to nothing": ({"env": [entry(valueFrom=MISSING)]}, ""),
    "a reference among others": (
        {"env": [entry("1", "A"), entry(valueFrom=REFERENCE), entry("$(LD_PRELOAD)", "B")]},
        "/from/map.so",
    ),
    "two values": ({"env": [entry("/1.so"), entry("1", "A"), entry("/2.so")]}, "/2.so"),
    "a value below a reference": ({"env": [entry(valueFrom=REFERENCE), entry("/2.so")]}, "/2.so"),
    "a reference below a value": ({"env": [entry("/1.so"), entry(valueFrom=REFERENCE)]}, "/from/map.so"),
    "two references": ({"env": [entry(valueFrom=MISSING), entry(valueFrom=REFERENCE)]}, "/from/map.so"),
    "an empty value below a value": ({"env": [entry("/1.so"), entry("")]}, ""),
    "a value that names the one above": (
        {"env": [entry("/1.so"), entry("$(LD_PRELOAD):/2.so")]},
        "/1.so:/2.so",
    ),
    "a value that names another": ({"env": [entry("/b.so", "B"), entry("$(B):/2.so")]}, "/b.so:/2.so"),
    "env over envFrom": (
        {"envFrom": [{"configMapRef": {"name": "cm"}}], "env": [entry("/own.so")]},
        "/own.so",
    ),
    "env that keeps envFrom": (
        {"envFrom": [{"configMapRef": {"name": "cm"}}], "env": [entry("$(LD_PRELOAD)")]},
        "/bulk.so",
    ),
    "envFrom with a prefix": ({"envFrom": [{"prefix": "MY_", "configMapRef": {"name": "cm"}}]}, ""),
    "envFrom of nothing": ({"envFrom": []}, ""),
}


@pytest.mark.parametrize("kind", ["containers", "initContainers", "sidecars"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_container_preloads_is_kept_and_ours_is_added(shape: str, kind: str) -> None:
    fields, own = SHAPES[shape]
    one = container("c", **asking(), **(fields or {}))
    others = {
        "containers": {},
        "initContainers": {"initContainers": [one]},
        "sidecars": {"initContainers": [one | {"restartPolicy": "Always"}]},
    }[kind]
    item = pod(*([one] if kind == "containers" else []), annotations=SAID, **others)
    made = apply(item)
    found = made["spec"]["containers" if kind == "containers" else "initContainers"][0]
    before, after = environment_of(one), environment_of(found)
    assert after["LD_PRELOAD"].strip(":") == ":".join(filter(None, [own, "/image.so", OURS]))
    kept = {k: v for k, v in after.items() if k not in ("LD_PRELOAD", "GPULIMIT_REFERENCED_PRELOAD")}
    assert kept.keys() == before.keys() - {"LD_PRELOAD"}
    assert review(made, Rules()).patches == [], "it is changed once, however often it is asked"


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ({"configMapRef": {"name": "cm"}}, "configMapRef cm"),
        ({"secretRef": {"name": "s"}}, "secretRef s"),
        ({"prefix": "", "secretRef": {"name": "s"}}, "secretRef s"),
        ({"prefix": "LD_", "configMapRef": {"name": "cm"}}, "configMapRef cm"),
    ],
)
def test_what_comes_unseen_is_refused_with_the_way_out(source: dict[str, Any], named: str) -> None:
    one = container("worker", **asking(), envFrom=[{"prefix": "X", "secretRef": {"name": "other"}}, source])
    refusal = review(pod(one, annotations=SAID), Rules()).refusal
    assert "container worker" in refusal and named in refusal and "set LD_PRELOAD in env" in refusal
    assert review(pod(one), Rules()).refusal == "", "without the annotation nothing of it changes"
    settled = {**one, "env": [entry("")]}
    assert review(pod(settled, annotations=SAID), Rules()).refusal == ""


@pytest.mark.parametrize(
    "env",
    [
        [entry("all", "NVIDIA_VISIBLE_DEVICES")],
        [entry("void", "NVIDIA_VISIBLE_DEVICES"), entry("all", "NVIDIA_VISIBLE_DEVICES")],
        [entry(name="NVIDIA_VISIBLE_DEVICES", valueFrom=REFERENCE)],
    ],
)
@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
def test_cards_are_hidden_whatever_the_environment_says(kind: str, env: list[dict[str, Any]]) -> None:
    rules, one = Rules(hides_others=True), container("c", env=env)
    item = pod(**{kind: [one]}) if kind != "containers" else pod(one)
    if kind == "ephemeralContainers":
        [patch] = judge_debugging(item, pod(), rules).patches
        number = int(patch["path"].rpartition("/")[2])
        assert patch["path"].startswith("/spec/ephemeralContainers/0/env/") and number == len(env) - 1
        assert patch["value"] == entry("void", "NVIDIA_VISIBLE_DEVICES")
        return
    made = apply(item, rules)["spec"][kind][0]
    assert environment_of(made)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_a_privileged_container_for_debugging_is_refused_in_pods_with_slices() -> None:
    debugger = container("debug", securityContext={"privileged": True})
    item = pod(container(**asking()), ephemeralContainers=[debugger])
    before = pod(container(**asking()))
    assert "container debug is privileged" in judge_debugging(item, before, Rules()).refusal
    assert judge_debugging(item, before, Rules(may_be_privileged=True)).refusal == ""
    assert judge_debugging(item, item, Rules()).refusal == "", "it is there already"
    assert judge_debugging(pod(ephemeralContainers=[debugger]), pod(), Rules()).refusal == ""
