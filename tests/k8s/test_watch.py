# SPDX-License-Identifier: Apache-2.0
"""The watch, against a server of our own that does what real ones are known to do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hypervisor.k8s import watch as watch_module
from hypervisor.k8s.access import Access
from hypervisor.k8s.backoff import Backoff
from hypervisor.k8s.client import MAX_LINE_BYTES, Client
from hypervisor.k8s.watch import Gone, Listed, Watch
from tests.k8s.conftest import Secure
from tests.k8s.fake_api import PODS, FakeApi, line_of, pod

WITHIN_S = 15.0


class Reader:
    """Follows a collection on a thread, and keeps what it was told."""

    def __init__(self, access: Access, *, stream_s: tuple[int, int] = (30, 40)) -> None:
        self.pods: dict[str, Any] = {}
        self.lists: list[int] = []
        self.seen: list[str] = []
        self.watch: Watch
        self._access, self._stream_s = access, stream_s
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._follow())
        self._loop.run_until_complete(asyncio.sleep(0.05))  # for connections to close
        self._loop.close()

    async def _follow(self) -> None:
        self._task = asyncio.current_task()
        async with Client(self._access, timeout_s=2) as client:
            self.watch = Watch(
                client,
                PODS,
                field_selector="spec.nodeName=node-a",
                stream_s=self._stream_s,
                backoff=Backoff(0.05, 0.5),
            )
            self._ready.set()
            async with contextlib.aclosing(self.watch.changes()) as changes:
                async for change in changes:
                    self._take(change)

    def _take(self, change: Any) -> None:
        if isinstance(change, Listed):
            self.pods = {item["metadata"]["name"]: item for item in change.items}
            self.lists.append(len(change.items))
            return
        name = change.item["metadata"]["name"]
        self.seen.append(name)
        if isinstance(change, Gone):
            self.pods.pop(name, None)
        else:
            self.pods[name] = change.item

    def wait(self, check: Callable[[Reader], object]) -> None:
        end = time.monotonic() + WITHIN_S
        while not check(self):
            assert time.monotonic() < end, (sorted(self.pods), self.lists, self.watch.trouble)
            time.sleep(0.01)

    def close(self) -> None:
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(5)


@contextlib.contextmanager
def reading(access: Access, **options: Any) -> Iterator[Reader]:
    reader = Reader(access, **options)
    try:
        yield reader
    finally:
        reader.close()


@pytest.fixture(params=["refused", "sent"], autouse=True)
def initial(request: pytest.FixtureRequest, fake_api: FakeApi) -> str:
    """Every test is run with a server that must be asked for lists, and one that begins streams with them."""
    fake_api.initial = request.param
    return fake_api.initial


@pytest.fixture
def reader(fake_api: FakeApi) -> Iterator[Reader]:
    fake_api.put(pod("first"))
    with reading(Access(fake_api.url)) as found:
        found.wait(lambda r: r.pods.keys() == {"first"} and r.watch.is_up)
        yield found


def value(reader: Reader, name: str) -> str | None:
    found: str | None = reader.pods[name]["metadata"].get("annotations", {}).get("gpulimit.io/memory")
    return found


def test_changes_arrive_and_other_nodes_pods_do_not(fake_api: FakeApi, reader: Reader) -> None:
    fake_api.put(pod("elsewhere", node="node-b"))
    fake_api.put(pod("second"))
    fake_api.annotate("second", memory="4Gi")
    fake_api.delete("first")
    reader.wait(lambda r: r.pods.keys() == {"second"} and value(r, "second") == "4Gi")
    assert reader.lists == [1]


def test_a_stream_that_ends_goes_on_without_a_new_list(fake_api: FakeApi) -> None:
    with reading(Access(fake_api.url), stream_s=(1, 1)) as reader:
        for number in range(30):
            fake_api.put(pod(f"p{number}"))
            time.sleep(0.1)
        reader.wait(lambda r: len(r.pods) == 30)
        assert fake_api.watches() >= 3
        assert reader.watch.lists == 1
        assert reader.watch.restarts == 0


@pytest.mark.parametrize("as_status", [False, True], ids=["event", "status"])
def test_a_version_that_the_server_has_forgotten_leads_to_a_list(
    fake_api: FakeApi, reader: Reader, as_status: bool
) -> None:
    fake_api.gone_as_status = as_status
    fake_api.stop()
    fake_api.delete("first")
    fake_api.put(pod("second"))
    fake_api.compact()
    fake_api.start()
    reader.wait(lambda r: r.pods.keys() == {"second"} and r.watch.is_up)
    assert reader.watch.lists == 2


def test_bookmarks_keep_the_version_fresh(fake_api: FakeApi, reader: Reader) -> None:
    for number in range(3):
        fake_api.put(pod(f"elsewhere{number}", node="node-b"))
    time.sleep(0.6)  # a bookmark has come
    fake_api.stop()
    fake_api.start()
    fake_api.put(pod("second"))
    reader.wait(lambda r: "second" in r.pods)
    versions = [q["resourceVersion"] for _, _, q in fake_api.requests if q.get("watch") == "true"]
    assert int(versions[-1]) >= 104  # past what happened on the other node
    assert reader.watch.lists == 1


def test_a_server_that_is_away_is_waited_for_and_nothing_is_lost(fake_api: FakeApi, reader: Reader) -> None:
    fake_api.stop()
    fake_api.delete("first")
    fake_api.put(pod("second"))
    reader.wait(lambda r: not r.watch.is_up and r.watch.trouble)
    assert reader.pods.keys() == {"first"}  # what was known stays known
    fake_api.start()
    reader.wait(lambda r: r.pods.keys() == {"second"} and r.watch.is_up)
    assert reader.watch.restarts >= 1


def test_deletes_that_were_missed_show_in_the_next_list(fake_api: FakeApi, reader: Reader) -> None:
    fake_api.put(pod("second"))
    reader.wait(lambda r: len(r.pods) == 2)
    fake_api.is_deaf = True
    fake_api.delete("first")
    fake_api.is_deaf = False
    fake_api.stop()
    fake_api.compact()
    fake_api.start()
    reader.wait(lambda r: r.pods.keys() == {"second"})


def test_a_silent_stream_is_not_trusted_for_ever(fake_api: FakeApi) -> None:
    """A server that was set back to an older state would let a watch of the future wait without a word."""
    fake_api.put(pod("first"))
    with reading(Access(fake_api.url), stream_s=(1, 1)) as reader:
        reader.wait(lambda r: r.watch.is_up)
        fake_api.is_deaf = True
        fake_api.delete("first")
        fake_api.requests.clear()
        reader.wait(lambda r: r.pods == {})


@pytest.mark.parametrize("is_secure", [False, True])
def test_who_doubts_gets_a_new_list_at_once(secure_api: Secure, fake_api: FakeApi, is_secure: bool) -> None:
    server = secure_api.server if is_secure else fake_api
    server.put(pod("first"))
    with reading(Access(server.url, str(secure_api.token_file), str(secure_api.ca_file))) as reader:
        reader.wait(lambda r: r.watch.is_up)
        server.is_deaf = True
        server.delete("first")
        begin = time.monotonic()
        reader._loop.call_soon_threadsafe(reader.watch.start_over)
        reader.wait(lambda r: r.pods == {} and r.watch.is_up)
        assert time.monotonic() - begin < 5


def test_a_server_with_older_versions_than_ours_is_believed(fake_api: FakeApi, reader: Reader) -> None:
    fake_api.stop()
    fake_api.delete("first")
    fake_api._version = 7  # restored from a backup
    fake_api.gone_as_status = True
    fake_api._oldest = 1000  # and it no longer knows our version
    fake_api.start()
    reader.wait(lambda r: r.pods == {})
    wholes = [
        q for _, _, q in fake_api.requests if q.get("watch") != "true" or q.get("sendInitialEvents") == "true"
    ]
    assert any(not q.get("resourceVersion") for q in wholes)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"<html>\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":[]}\n',
        b'{"type":"NEW","object":{}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"x"}}}\n',
        b'{"type":"ADDED","object":{"metadata":[]}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"half',
        b'{"type":"ERROR","object":{"code":500,"message":"etcd is away"}}\n',
        b"x" * (MAX_LINE_BYTES + 70_000),
    ],
    ids=["html", "no object", "list", "type", "version", "metadata", "half", "error", "long"],
)
def test_nonsense_in_a_stream_costs_a_restart_and_no_pod(
    fake_api: FakeApi, reader: Reader, nonsense: bytes
) -> None:
    fake_api.answers = [nonsense]
    fake_api.stop()
    fake_api.start()
    fake_api.put(pod("second"))
    reader.wait(lambda r: r.pods.keys() == {"first", "second"} and r.watch.is_up)
    assert not fake_api.answers


def test_a_server_that_always_refuses_is_not_pestered(
    fake_api: FakeApi, reader: Reader, initial: str
) -> None:
    fake_api.gone_as_status = True
    fake_api.stop()
    fake_api._oldest = 1 << 40
    before = len(fake_api.requests)
    fake_api.start()
    time.sleep(3)
    asked = fake_api.requests[before:]
    assert len(asked) < 30  # half a second apart, two requests each
    lists = [query for _, _, query in asked if query.get("watch") != "true"]
    if initial == "sent":  # no version is too old for that
        assert not lists and reader.pods.keys() == {"first"}
        return
    assert "resourceVersion" not in lists[-1]  # a list from a cache may have been what led here


def test_a_new_token_is_taken_up(secure_api: Secure) -> None:
    access = Access(secure_api.server.url, str(secure_api.token_file), str(secure_api.ca_file))
    secure_api.server.put(pod("first"))
    with reading(access) as reader:
        reader.wait(lambda r: r.pods.keys() == {"first"})
        secure_api.server.tokens = {"second"}
        secure_api.server.stop()
        secure_api.server.start()
        secure_api.server.put(pod("second"))
        reader.wait(lambda r: "401" in r.watch.trouble)
        secure_api.token_file.write_text("second")
        reader.wait(lambda r: r.pods.keys() == {"first", "second"} and r.watch.is_up)


# ---- the collection at the head of the stream ----


def kinds(server: FakeApi) -> list[str]:
    """Return what was asked for: a list, a stream that begins with one, or a stream."""
    found = []
    for _, path, query in server.requests:
        if path == PODS:
            head = query.get("sendInitialEvents") == "true"
            found.append("head" if head else "stream" if query.get("watch") == "true" else "list")
    return found


def test_one_stream_gives_the_pods_and_their_changes(fake_api: FakeApi, initial: str) -> None:
    for number in range(3):
        fake_api.put(pod(f"p{number}"))
    fake_api.put(pod("elsewhere", node="node-b"))
    with reading(Access(fake_api.url)) as reader:
        reader.wait(lambda r: r.pods.keys() == {"p0", "p1", "p2"} and r.watch.is_up)
        fake_api.put(pod("second"))
        reader.wait(lambda r: "second" in r.pods)
        assert reader.lists == [3] and reader.seen == ["second"]
        assert reader.watch.restarts == 0 and reader.watch.lists_by_stream == (initial == "sent")
    assert kinds(fake_api) == (["head"] if initial == "sent" else ["head", "list", "stream"])
    head = next(q for _, _, q in fake_api.requests if q.get("sendInitialEvents") == "true")
    assert head["resourceVersionMatch"] == "NotOlderThan" and head["allowWatchBookmarks"] == "true"


def test_who_refused_once_is_asked_for_lists(fake_api: FakeApi) -> None:
    fake_api.initial = "refused"
    with reading(Access(fake_api.url)) as reader:
        for times in range(1, 4):
            reader.wait(lambda r, n=times: len(r.lists) == n and r.watch.is_up)
            reader._loop.call_soon_threadsafe(reader.watch.start_over)
    assert kinds(fake_api).count("head") == 1


def test_a_server_that_never_ends_the_collection_is_asked_for_lists(
    fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not know the parameter, and sends a stream like any other."""
    monkeypatch.setattr(watch_module, "INITIAL_S", 0.5)
    fake_api.initial = "ignored"
    fake_api.put(pod("first"))
    with reading(Access(fake_api.url)) as reader:
        reader.wait(lambda r: r.pods.keys() == {"first"} and r.watch.is_up)
        assert reader.lists == [1] and not reader.watch.lists_by_stream
    assert kinds(fake_api) == ["head", "list", "stream"]


def test_what_changes_while_the_collection_comes_is_in_it(fake_api: FakeApi) -> None:
    fake_api.initial = "sent"
    fake_api.put(pod("first"))
    fake_api.put(pod("second"))
    going, coming = ({"metadata": {"name": n, "namespace": "default"}} for n in ("first", "third"))
    for one in (going, coming):
        one["metadata"]["resourceVersion"] = "103"
    early = {"kind": "Pod", "metadata": {"resourceVersion": "103"}}  # a bookmark without the mark
    fake_api.after_initial = [
        line_of("DELETED", going),
        line_of("BOOKMARK", early),
        line_of("MODIFIED", coming),
    ]
    with reading(Access(fake_api.url)) as reader:
        reader.wait(lambda r: r.pods.keys() == {"second", "third"} and r.watch.is_up)
        assert reader.lists == [2]


@pytest.mark.parametrize(
    "nonsense",
    [b"<html>\n", b'{"type":"ERROR","object":{"code":410,"message":"gone"}}\n', b'{"type":"ADDED"', b""],
    ids=["html", "gone", "half", "cut"],
)
def test_half_a_collection_is_none(fake_api: FakeApi, reader: Reader, nonsense: bytes) -> None:
    """What was known stays known: a pod that was not sent yet is not gone."""
    fake_api.initial = "sent"
    reader.watch._asks_streams = True
    fake_api.put(pod("second"))
    reader.wait(lambda r: len(r.pods) == 2)
    stale = {"metadata": {"name": "third", "namespace": "default", "resourceVersion": "103"}}
    fake_api.answers = [line_of("ADDED", stale) + nonsense] * 2
    lists = len(reader.lists)
    reader._loop.call_soon_threadsafe(reader.watch.start_over)
    reader.wait(lambda r: not fake_api.answers and len(r.lists) > lists and r.watch.is_up)
    assert reader.lists[lists:] == [2] and reader.pods.keys() == {"first", "second"}
    assert reader.watch.restarts >= 2 and reader.watch.lists_by_stream


def test_a_thousand_changes_arrive_in_order(fake_api: FakeApi, reader: Reader) -> None:
    for number in range(1000):
        fake_api.put(
            pod(
                "first", uid="8f8e6f5c-6b0f-4a57-9d7c-0c7b4f6a2d11", annotations={"memory": f"{number + 1}Mi"}
            )
        )
        if number % 250 == 100:
            fake_api.stop()
            fake_api.start()
    reader.wait(lambda r: value(r, "first") == "1000Mi")
    assert len(reader.seen) == 1000


def test_waits_double_up_to_a_limit_and_differ() -> None:
    longest = Backoff(1, 8, draw=lambda: 1.0)
    assert [longest.next_s() for _ in range(5)] == [1, 2, 4, 8, 8]
    longest.reset()
    assert longest.next_s() == 1
    assert Backoff(1, 8, draw=lambda: 0.0).next_s() == 0.5


def test_lines_are_found_wherever_they_are_cut(fake_api: FakeApi, reader: Reader) -> None:
    meta = {"name": "é" * 50_000, "resourceVersion": "500"}
    big = json.dumps({"type": "ADDED", "object": {"metadata": meta}}, ensure_ascii=False).encode()
    fake_api.answers = [b"\n" + big + b"\n\n" + big.replace(b'"500"', b'"501"') + b"\n"]
    fake_api.stop()
    fake_api.start()
    reader.wait(lambda r: len(r.seen) == 2)
