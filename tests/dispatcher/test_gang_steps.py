# SPDX-License-Identifier: Apache-2.0
"""Steps of the dispatcher where tenants are gangs, on segments of the test's own instead of shared memory."""

from __future__ import annotations

from typing import Any

import pytest
from limiter._native import ffi

from hypervisor.dispatcher.dispatcher import Dispatcher, TenantList
from hypervisor.dispatcher.run_queue import TenantHandle
from hypervisor.model import GpuUuid, TenantName
from hypervisor.scheduler.types import GANG_OFF, MS, SchedParams, SchedulerConfig
from hypervisor.shm.segments import uuid_bytes

CARDS = [GpuUuid(f"GPU-{number:08d}-0000-0000-0000-000000000000") for number in range(4)]


class Usage:
    """A usage segment whose counters the test sets."""

    def __init__(self, cards: list[int]) -> None:
        self.view: Any = ffi.new("struct gl_usage *")
        self.bell: Any = ffi.addressof(self.view.header, "doorbell")
        self.figures: Any = ffi.new("struct gl_sample *")
        self.figures.created_ns = self.figures.slots = 1
        for entry, card in enumerate(cards):
            device = self.figures.device[entry]
            device.ready = device.processes = device.waiting = 1
            device.uuid = uuid_bytes(CARDS[card])
        self.reads = 0

    def sample(self) -> Any:
        self.reads += 1
        self.figures.doorbell = self.view.header.doorbell
        return self.figures

    def ring(self) -> None:
        self.view.header.doorbell += 1

    def spend(self, ns: int) -> None:
        for device in self.figures.device:
            device.spent_ns += ns if device.ready else 0


class Policy:
    """A policy segment that remembers the last grant of each entry."""

    def __init__(self) -> None:
        self.grants: dict[int, dict[str, int]] = {}
        self.order: list[int] = []

    def grant(self, entry: int, **grant: int) -> None:
        self.grants[entry] = grant
        self.order.append(entry)

    def beat(self, now_ns: int, start_ns: int) -> None:
        pass

    def want_memory(self, entry: int, *, is_wanted: bool) -> None:
        pass


class Node:
    """A dispatcher, stepped by hand."""

    def __init__(self) -> None:
        self.now_ns = 1000 * MS
        self.usage: dict[str, Usage] = {}
        self.policy: dict[str, Policy] = {}
        self._members: list[TenantHandle] = []
        self.dispatcher = Dispatcher(
            SchedulerConfig(), start_ns=1, placed=lambda *_: None, broken=lambda *_: None
        )

    def add(self, name: str, cards: list[int], *, gang_devices: int = 0, **terms: Any) -> Usage:
        usage, policy = Usage(cards), Policy()
        usage.figures.gang_devices = gang_devices
        self.usage[name], self.policy[name] = usage, policy
        by_gpu = dict.fromkeys(CARDS, SchedParams(**terms))
        self._members.append(TenantHandle(TenantName(name), usage, policy, by_gpu))  # type: ignore[arg-type]
        self.dispatcher.replace(TenantList(len(self._members), tuple(CARDS), tuple(self._members)))
        return usage

    def step(self, by_ns: int = MS) -> None:
        self.now_ns += by_ns
        self.dispatcher.step(self.now_ns)

    def is_open(self, name: str, card: int) -> bool:
        grant = self.policy[name].grants.get(card)
        spent_ns = max(d.spent_ns for d in self.usage[name].figures.device)
        return grant is not None and (not grant["is_shared"] or grant["granted_ns"] > spent_ns)

    def run_to_turn(self, name: str, card: int) -> None:
        """Step until the gang has its turn on a card."""
        for _ in range(400):
            if self.is_open(name, card) and self.policy[name].grants[card]["run_ahead_ns"] == 8 * MS:
                return
            if self.usage[name].figures.device[0].spent_ns < 12 * MS:
                self.usage[name].spend(3 * MS)
            for usage in self.usage.values():
                usage.ring()
            self.step()
        pytest.fail("the gang has had no turn")


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_gang_s_turn_begins_in_one_step_on_all_of_its_cards(node: Node) -> None:
    node.add("job", [0, 1], gang_devices=0b11)
    node.add("one", [0])
    node.add("two", [1])
    node.run_to_turn("job", 0)
    grants = node.policy["job"].grants
    assert grants[0]["start_ns"] == grants[1]["start_ns"]
    assert node.is_open("job", 1)
    assert not node.is_open("one", 0)
    assert not node.is_open("two", 1)
    shares = node.dispatcher.shares
    node.step(60 * MS)
    shares = node.dispatcher.shares
    assert shares[CARDS[0]][TenantName("job")].has_turn
    assert shares[CARDS[1]][TenantName("job")].has_turn


def test_a_turn_s_end_is_counted_and_gives_the_cards_back(node: Node) -> None:
    node.add("job", [0, 1], gang_devices=0b11)
    one, two = node.add("one", [0]), node.add("two", [1])
    node.run_to_turn("job", 0)
    for _ in range(40):
        one.ring()
        two.ring()
        node.step(4 * MS)
    assert node.dispatcher.gang_turns.counters().ended == {"quantum": 1}
    assert node.is_open("one", 0)
    assert node.is_open("two", 1)
    assert not node.is_open("job", 0)


def test_a_tenant_takes_back_no_word_of_being_a_gang(node: Node) -> None:
    """Otherwise it would begin with a clean account after each turn."""
    job = node.add("job", [0, 1], gang_devices=0b11)
    node.add("one", [0])
    node.run_to_turn("job", 0)
    job.figures.gang_devices = 0
    job.ring()
    node.step()
    assert node.is_open("job", 0)
    assert node.is_open("job", 1)
    assert not node.dispatcher.gang_turns.counters().ended


def test_gang_off_beats_what_the_library_sees(node: Node) -> None:
    node.add("job", [0, 1], gang_devices=0b11, gang=GANG_OFF)
    node.add("one", [0])
    for _ in range(20):
        node.usage["job"].spend(3 * MS)
        node.usage["job"].ring()
        node.step()
    assert node.policy["job"].grants[0]["is_shared"]
    assert not node.policy["job"].grants[1]["is_shared"]


def test_bits_of_entries_that_there_are_not_are_ignored(node: Node) -> None:
    node.add("job", [0, 1], gang_devices=0xFFFFFFFF)
    node.add("one", [0])
    node.run_to_turn("job", 1)
    assert set(node.policy["job"].grants) == {0, 1}


def test_a_step_of_a_gang_leaves_other_cards_alone(node: Node) -> None:
    node.add("job", [0, 1], gang_devices=0b11)
    node.add("one", [0])
    elsewhere = [node.add(f"else{number}", [2 + number % 2]) for number in range(8)]
    for usage in elsewhere:
        usage.figures.device[0].waiting = 0
    node.run_to_turn("job", 0)
    reads = [usage.reads for usage in elsewhere]
    written = [len(node.policy[f"else{number}"].order) for number in range(8)]
    for _ in range(10):
        node.usage["one"].ring()
        node.step(MS // 2)
    assert sum(usage.reads for usage in elsewhere) - sum(reads) <= 8  # one heartbeat at most
    assert [len(node.policy[f"else{number}"].order) for number in range(8)] == written


def test_a_gang_whose_processes_have_ended_leaves_nothing_behind(node: Node) -> None:
    job = node.add("job", [0, 1], gang_devices=0b11)
    node.add("one", [0])
    node.run_to_turn("job", 0)
    job.figures.slots = 0
    job.ring()
    node.step()
    assert not node.policy["one"].grants[0]["is_shared"]
    assert node.dispatcher.gang_turns.counters().ended == {"left": 1}
