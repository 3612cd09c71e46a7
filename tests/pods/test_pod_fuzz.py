# SPDX-License-Identifier: Apache-2.0
"""Objects and annotations that mean harm: whatever they hold, they are read, or refused with a ValueError."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hypervisor.pods.pod import Pods, pod_of
from hypervisor.pods.quantity import size_bytes
from hypervisor.pods.quota import FIELDS, peak, quotas_of

CARD = "GPU-00000000-0000-0000-0000-000000000001"
UID = "8f8e6f5c-6b0f-4a57-9d7c-0c7b4f6a2d11"
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=20,
)
KEYS = [
    *(f"gpulimit.io/{key}" for key in (*FIELDS, "main.memory", "other.compute", ".memory", "memory.", "")),
    *("nvshare.com/gpu-memory-limit", "xpushare.com/gpu-core-limit"),
    *("kubernetes.io/config.hash", "kubernetes.io/config.mirror"),
]
words = st.text(max_size=30) | st.text("0123456789.%,=*eEkKMGTPimB -GPU", max_size=20)
annotations = st.dictionaries(st.sampled_from(KEYS), words | json, max_size=6)
resources = st.dictionaries(
    st.sampled_from(["nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/priority"]), words | json
)


def objects() -> Any:
    limits = st.fixed_dictionaries({"limits": resources})
    container = st.fixed_dictionaries(
        {"name": st.sampled_from(["main", "other"]) | json, "resources": limits}
    )
    return st.fixed_dictionaries(
        {
            "metadata": json
            | st.fixed_dictionaries(
                {"name": st.just("p"), "uid": st.just(UID) | json, "annotations": annotations | json}
            ),
            "spec": json
            | st.fixed_dictionaries({"containers": st.lists(container, max_size=3), "initContainers": json}),
            "status": json | st.fixed_dictionaries({"containerStatuses": json, "phase": json}),
        }
    )


@settings(max_examples=400, deadline=None)
@given(st.lists(objects() | json.filter(lambda one: isinstance(one, dict)), max_size=3))
def test_any_object_is_a_pod_or_none(items: list[Any]) -> None:
    pods = Pods()
    for item in items:
        with contextlib.suppress(ValueError):
            pod = pod_of(item)
            pods.put(pod)
            said = quotas_of(pod)
            assert said.problems or said.pod or said.containers or not said.dialect
            for quota in (said.pod, *said.containers.values()):
                if quota is not None:
                    assert quota.is_set
                    limit = quota.memory_bytes(80 << 30, index=0, uuid=CARD)
                    assert limit is None or 0 <= limit <= 80 << 30
            assert peak(pod, lambda _: 1) <= len(pod.containers)
    for pod in pods:
        pods.remove(pod)
    assert len(pods) == 0


@settings(max_examples=400, deadline=None)
@given(words)
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert 1 << 20 <= size_bytes(text) < 1 << 63
