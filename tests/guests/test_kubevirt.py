# SPDX-License-Identifier: Apache-2.0
"""KubeVirt's machines as a source of targets, over a real connection to a made-up API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hypervisor.guests.kubevirt import MARK, PATH, KubeVirt
from hypervisor.guests.target import Target
from hypervisor.k8s.access import Access
from hypervisor.k8s.client import Client
from hypervisor.scraper.endpoint import Endpoint
from tests.guests.conftest import of
from tests.k8s.fake_api import FakeApi

NODE = "node-a"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi(collection=PATH)
    yield server
    server.close()


def vmi(
    name: str, cid: Any = 42, *, mark: str = "gpulimit-vsock", node: str = NODE, **status: Any
) -> dict[str, Any]:
    """Return a machine as KubeVirt's API has it."""
    return {
        "metadata": {"name": name, "namespace": "ml", "annotations": {MARK: mark} if mark else {}},
        "spec": {"domain": {"devices": {"autoattachVSOCK": True}}},
        "status": {"nodeName": node, "phase": "Running", "VSOCKCID": cid, **status},
    }


def follow(api: FakeApi, steps: Callable[[Callable[..., Any], KubeVirt], Any]) -> None:
    """Run a source, and beside it, in a thread, steps that are given `until(check)` and the source."""

    async def run() -> None:
        async with Client(Access(api.url)) as client:
            source = KubeVirt(client, node=NODE, port=9402)
            task = asyncio.create_task(source.run())

            def until(check: Callable[[], Any]) -> Any:
                end = time.monotonic() + 20
                while time.monotonic() < end:
                    if check():
                        return
                    time.sleep(0.02)
                pytest.fail(f"never: {source.targets}")

            try:
                await asyncio.to_thread(steps, until, source)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def addresses(source: KubeVirt) -> dict[str, str]:
    return {target.name: str(target.endpoint) for target in source.targets}


def test_machines_come_move_restart_and_go(api) -> None:
    kept = api.put(vmi("a"))

    def steps(until, source) -> None:
        until(lambda: source.targets)
        assert source.targets == (
            Target("ml", "a", NODE, Endpoint("vsock", "42", 9402), "kubevirt", kept["metadata"]["uid"]),
        )
        assert api.requests[0][2]["labelSelector"] == f"kubevirt.io/nodeName={NODE}"
        until(lambda: source.is_up)
        assert 0 < time.monotonic() - source.confirmed_at_s < 10
        api.put(vmi("b", 43, mark="prometheus-vsock:9835"))
        until(lambda: addresses(source) == {"a": "vsock://42:9402", "b": "vsock://43:9835"})
        api.put(vmi("a", 44))
        until(lambda: addresses(source)["a"] == "vsock://44:9402")
        api.put(vmi("b", 43, node="node-b"))
        until(lambda: "b" not in addresses(source))
        # Its CID goes to another machine; the same name comes back as another object.
        api.delete("a", "ml")
        api.put(vmi("c", 44))
        until(lambda: addresses(source) == {"c": "vsock://44:9402"})
        api.put(vmi("a", 45))
        until(lambda: len(source.targets) == 2)
        assert next(t for t in source.targets if t.name == "a").uid != kept["metadata"]["uid"]

    follow(api, steps)


NOT_TO_BE_ASKED = [
    vmi("x", mark=""),
    vmi("x", mark="nonsense"),
    vmi("x", mark="vsock:0"),
    vmi("x", mark="vsock:99999999999"),
    vmi("x", mark="vsock:http"),
    vmi("x", node="node-b"),
    vmi("x", phase="Scheduling"),
    {**vmi("x"), "metadata": {**vmi("x")["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}},
    {**vmi("x"), "status": None},
    {**vmi("x"), "status": []},
    {**vmi("x"), "status": 5},
    {"metadata": {"namespace": "ml", "annotations": 5}},
    {"metadata": {"namespace": "ml", "annotations": {MARK: 5}}},
    {"metadata": {"namespace": "ml"}},
]
NO_CIDS = [None, 0, 1, 2, 4294967295, -1, "42", True, 4.5]


def test_machines_that_are_not_to_be_asked_or_cannot_be(api) -> None:
    for number, item in enumerate(NOT_TO_BE_ASKED):
        api.put({**item, "metadata": {**item["metadata"], "name": f"not-{number}"}})
    for number, cid in enumerate(NO_CIDS):
        api.put(vmi(f"no-address-{number}", cid))
    api.put(vmi("other"))
    wanted = {f"no-address-{number}": "None" for number in range(len(NO_CIDS))}
    wanted["other"] = "vsock://42:9402"

    def steps(until, source) -> None:
        until(lambda: source.targets)
        assert addresses(source) == wanted
        for number, item in enumerate(NOT_TO_BE_ASKED):  # as changes of what was to be asked
            api.put(vmi(f"not-{number}"))
            api.put({**item, "metadata": {**item["metadata"], "name": f"not-{number}"}})
        api.put(vmi("last"))
        until(lambda: "last" in addresses(source))
        assert addresses(source) == {**wanted, "last": "vsock://42:9402"}

    follow(api, steps)


def test_the_mark_may_be_a_label(api) -> None:
    item = vmi("x", mark="")
    item["metadata"]["labels"] = {MARK: "vsock"}
    api.put(item)
    follow(api, lambda until, source: until(lambda: addresses(source) == {"x": "vsock://42:9402"}))


def test_while_the_cluster_is_away_the_list_stays_and_confirms_nothing(api) -> None:
    api.put(vmi("a"))

    def steps(until, source) -> None:
        until(lambda: source.targets and source.is_up)
        api.stop()
        until(lambda: not source.is_up)
        confirmed_at_s = source.confirmed_at_s
        time.sleep(0.1)
        assert source.targets and source.confirmed_at_s == confirmed_at_s
        api.start()
        until(lambda: source.is_up)

    follow(api, steps)


def test_a_real_collector_follows_the_cluster(api, collector) -> None:
    """As far as it goes without a guest that can be reached."""
    api.put(vmi("unreachable", 123456789))
    api.put(vmi("no-address", None))
    api.put(vmi("elsewhere", 43, node="node-b"))
    served = collector(guests="", kubevirt="on", node=NODE, kube_api=api.url, timeout="500ms")
    page = served.until(lambda p: p if of(p, "gpulimit_guest_targets", source="kubevirt") == [2] else None)
    assert of(page, "gpulimit_guest_source_up", source="kubevirt") == [1]
    assert of(page, "gpulimit_guest_scrape_failures_total", name="no-address", reason="no_vsock") == [1]
    served.until(lambda p: of(p, "gpulimit_guest_scrape_failures_total", name="unreachable"))
    assert of(page, "gpulimit_guest_up", namespace="ml", node=NODE) == [0, 0]
    api.stop()
    served.until(lambda p: of(p, "gpulimit_guest_source_up", source="kubevirt") == [0])
    status, why = served.page("/readyz")
    assert status == 503 and "kubevirt" in why
    assert of(served.metrics(), "gpulimit_guest_targets", source="kubevirt") == [2]
    served.stop()
    assert served.process.returncode == 0
