# SPDX-License-Identifier: Apache-2.0
"""Memory that several processes hold is charged once: never twice inside the tenant, never to none of them.

The first payer may give it back, end, or be killed; another that still holds it is then charged.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from limiter import segment

from ..conftest import remove_segments
from .conftest import wait_until
from .sharing import MIB, Member

SIZE = 600 * MIB
Start = Callable[..., Member]


@pytest.fixture
def socket_path() -> Iterator[Callable[[], str]]:
    """Return names for sockets, short enough for one."""
    folder = Path(tempfile.mkdtemp(prefix="share-"))
    count = iter(range(100))
    yield lambda: str(folder / str(next(count)))
    shutil.rmtree(folder)


class ByDescriptor:
    """cuMemCreate, handed over as a file descriptor."""

    def __init__(self, new_path: Callable[[], str]) -> None:
        self.new_path = new_path

    def make(self, exporter: Member) -> int:
        result, handle = exporter("create", SIZE)
        assert result == 0
        return int(handle)

    def hand(self, exporter: Member, memory: int, importer: Member) -> tuple[int, Any]:
        path = self.new_path()
        importer.tell("listen", path)
        assert importer.hear() == "listening"
        assert exporter("send", memory, path) == 0
        (fd,) = importer.hear()
        result, handle = importer("take", fd)
        if result:
            return result, None
        result, at = importer("map", handle, SIZE)
        return result, (handle, at)

    def drop(self, exporter: Member, memory: int) -> None:
        assert exporter("release", memory) == 0

    def let_go(self, importer: Member, held: Any) -> None:
        handle, at = held
        assert importer("release", handle) == 0
        assert importer("unmap", at, SIZE) == 0


class ByHandle:
    """cuMemAlloc, handed over as an opaque handle."""

    def __init__(self, new_path: Callable[[], str]) -> None:
        del new_path

    def make(self, exporter: Member) -> int:
        result, pointer = exporter("alloc", SIZE)
        assert result == 0
        return int(pointer)

    def hand(self, exporter: Member, memory: int, importer: Member) -> tuple[int, Any]:
        result, name = exporter("ipc_name", memory)
        assert result == 0
        result, at = importer("ipc_open", name)
        return result, at

    def drop(self, exporter: Member, memory: int) -> None:
        assert exporter("free", memory) == 0

    def let_go(self, importer: Member, held: Any) -> None:
        assert importer("ipc_close", held) == 0


@pytest.fixture(params=[ByDescriptor, ByHandle], ids=["descriptor", "handle"])
def way(request: Any, socket_path: Callable[[], str]) -> Any:
    return request.param(socket_path)


def test_memory_is_charged_once_while_both_hold_it(member: Start, way: Any, card_used: Any) -> None:
    exporter, importer = member(), member()
    memory = way.make(exporter)
    result, _ = way.hand(exporter, memory, importer)
    assert result == 0
    assert exporter.used() == importer.used() == SIZE
    assert sum(card_used()) == 0 or sum(card_used()) >= SIZE
    assert importer("alloc", 300 * MIB)[0] == 0
    assert importer("alloc", 200 * MIB)[0] == 2


@pytest.mark.parametrize("end", ["killed", "given back"])
def test_the_importer_is_charged_once_the_exporter_is_gone(member: Start, way: Any, end: str) -> None:
    exporter, importer, other = member(), member(), member()
    memory = way.make(exporter)
    result, held = way.hand(exporter, memory, importer)
    assert result == 0
    if end == "killed":
        exporter.kill()
    else:
        way.drop(exporter, memory)
    assert importer.used() == SIZE
    assert other("alloc", 500 * MIB)[0] == 2
    assert importer("alloc", 500 * MIB)[0] == 2
    way.let_go(importer, held)
    assert importer.used() == 0
    assert other("alloc", 900 * MIB)[0] == 0


def test_a_tenant_cannot_hold_more_than_its_quota_by_children_that_export_and_end(
    member: Start, way: Any
) -> None:
    parent = member()
    held = 0
    for _ in range(4):
        child = member()
        result, *_ = child("create", SIZE) if isinstance(way, ByDescriptor) else child("alloc", SIZE)
        if result == 0:
            memory = _[0]
            held += way.hand(child, memory, parent)[0] == 0
        child.kill()
    assert held == 1
    assert parent.used() == SIZE


@pytest.mark.parametrize("order", ["first", "second"])
def test_of_two_importers_one_is_charged_and_then_the_other(member: Start, way: Any, order: str) -> None:
    exporter, one, two = member(), member(), member()
    memory = way.make(exporter)
    handed = [way.hand(exporter, memory, importer) for importer in (one, two)]
    assert [result for result, _ in handed] == [0, 0]
    held = [what for _, what in handed]
    exporter.kill()
    assert one.used() == SIZE
    gone, left = (one, two) if order == "first" else (two, one)
    gone.kill()
    assert left.used() == SIZE
    way.let_go(left, held[1] if left is two else held[0])
    assert left.used() == 0


def test_an_importer_that_lets_go_first_changes_nothing(member: Start, way: Any) -> None:
    exporter, importer = member(), member()
    memory = way.make(exporter)
    _, held = way.hand(exporter, memory, importer)
    way.let_go(importer, held)
    assert importer.used() == SIZE
    way.drop(exporter, memory)
    assert importer.used() == 0


@pytest.fixture
def tenants(member: Start, tenant: str) -> Iterator[Callable[[str], Member]]:
    """Return a function that starts a process of another tenant."""
    names = set()

    def start(suffix: str) -> Member:
        names.add(name := f"{tenant}-{suffix}")
        return member(GPULIMIT_TENANT=name)

    yield start
    for name in names:
        remove_segments(name)


@pytest.mark.parametrize("end", ["killed", "given back"])
def test_memory_of_another_tenant_is_charged_to_it_until_it_lets_go(
    tenants: Callable[[str], Member], way: Any, end: str
) -> None:
    exporter, importer = tenants("a"), tenants("b")
    memory = way.make(exporter)
    result, held = way.hand(exporter, memory, importer)
    assert result == 0
    assert (exporter.used(), importer.used()) == (SIZE, 0)
    result, own = importer("alloc", 900 * MIB)
    assert result == 0
    assert importer("alloc", 200 * MIB)[0] == 2
    assert importer("free", own) == 0
    if end == "killed":
        exporter.kill()
    else:
        way.drop(exporter, memory)
        assert exporter.used() == 0
    assert importer.used() == SIZE
    assert importer("alloc", 500 * MIB)[0] == 2
    way.let_go(importer, held)
    assert importer.used() == 0


def test_another_process_of_the_exporting_tenant_pays_before_an_importer_outside(
    tenants: Callable[[str], Member], way: Any
) -> None:
    exporter, heir, importer = tenants("a"), tenants("a"), tenants("b")
    memory = way.make(exporter)
    held = [way.hand(exporter, memory, one) for one in (heir, importer)]
    assert [result for result, _ in held] == [0, 0]
    exporter.kill()
    assert (heir.used(), importer.used()) == (SIZE, 0)
    way.let_go(heir, held[0][1])
    assert (heir.used(), importer.used()) == (0, SIZE)


def test_of_the_processes_of_an_importing_tenant_one_is_charged(
    tenants: Callable[[str], Member], way: Any
) -> None:
    exporter, one, two = tenants("a"), tenants("b"), tenants("b")
    memory = way.make(exporter)
    held = [way.hand(exporter, memory, importer) for importer in (one, two)]
    assert [result for result, _ in held] == [0, 0]
    assert one.used() == 0
    exporter.kill()
    assert one.used() == two.used() == SIZE
    one.kill()
    assert two.used() == SIZE
    way.let_go(two, held[1][1])
    assert two.used() == 0


@pytest.mark.parametrize("first", ["killed", "given back", "lasts"])
def test_of_two_importing_tenants_the_first_is_charged_and_then_the_other(
    tenants: Callable[[str], Member], way: Any, first: str
) -> None:
    exporter, one, two = tenants("a"), tenants("b"), tenants("c")
    memory = way.make(exporter)
    held = [way.hand(exporter, memory, importer) for importer in (one, two)]
    assert [result for result, _ in held] == [0, 0]
    exporter.kill()
    assert (one.used(), two.used()) == (SIZE, 0)
    if first == "lasts":
        way.let_go(two, held[1][1])
        assert (one.used(), two.used()) == (SIZE, 0)
        return
    if first == "killed":
        one.kill()
    else:
        way.let_go(one, held[0][1])
        assert one.used() == 0
    assert two.used() == SIZE
    assert two("alloc", 500 * MIB)[0] == 2


def test_an_importer_outside_that_lets_go_first_changes_nothing(
    tenants: Callable[[str], Member], way: Any
) -> None:
    exporter, importer = tenants("a"), tenants("b")
    memory = way.make(exporter)
    for _ in range(3):
        _, held = way.hand(exporter, memory, importer)
        way.let_go(importer, held)
        assert (exporter.used(), importer.used()) == (SIZE, 0)
    way.drop(exporter, memory)
    assert exporter.used() == 0


def test_a_tenant_that_imports_what_another_pays_for_needs_no_room_for_it(
    tenants: Callable[[str], Member], way: Any
) -> None:
    """Once it does have to pay, nothing more is given to it."""
    exporter, importer = tenants("a"), tenants("b")
    result, _ = importer("alloc", 600 * MIB)
    assert result == 0
    memory = way.make(exporter)
    result, held = way.hand(exporter, memory, importer)
    assert result == 0
    assert importer.used() == 600 * MIB
    exporter.kill()
    assert importer.used() == 1024 * MIB  # all of its quota, and more
    assert importer("alloc", 50 * MIB)[0] == 2
    way.let_go(importer, held)
    assert importer.used() == 600 * MIB


def test_status_shows_memory_of_several_tenants_once(
    tenants: Callable[[str], Member], way: Any, tenant: str
) -> None:
    exporter, importer = tenants("a"), tenants("b")
    result, _ = way.hand(exporter, way.make(exporter), importer)
    assert result == 0
    names = [f"{tenant}-a", f"{tenant}-b"]
    assert [segment.read(name).devices[0].used_bytes for name in names] == [SIZE, 0]
    assert [sum(a.used_bytes for p in segment.read(n).processes for a in p.accounts) for n in names] == [
        SIZE,
        0,
    ]
    exporter.kill()
    assert segment.read(names[1]).devices[0].used_bytes == SIZE


@pytest.mark.parametrize("who", ["exporter", "importer"])
def test_a_process_that_closes_all_descriptors_leaves_no_memory_without_a_tenant_to_pay(
    tenants: Callable[[str], Member], way: Any, who: str
) -> None:
    exporter, importer = tenants("a"), tenants("b")
    memory = way.make(exporter)
    result, held = way.hand(exporter, memory, importer)
    assert result == 0
    (exporter if who == "exporter" else importer)("close_all")
    assert exporter.used() == SIZE
    assert importer.used() in ((0,) if who == "importer" else (0, SIZE))
    exporter.kill()
    assert importer.used() == SIZE
    way.let_go(importer, held)
    assert importer.used() == 0


@pytest.mark.parametrize("end", ["killed", "given back"])
def test_pool_memory_is_charged_to_the_importer_once_the_exporter_is_gone(
    member: Start, socket_path: Callable[[], str], end: str
) -> None:
    exporter, importer = member(), member()
    path = socket_path()
    importer.tell("listen", path)
    assert importer.hear() == "listening"
    result, pointer, name = exporter("pool_name", SIZE, path)
    (fd,) = importer.hear()
    assert result == 0
    result, at = importer("pool_open", fd, name)
    assert result == 0
    assert importer.used() == SIZE
    if end == "killed":
        exporter.kill()
        assert importer.used() == SIZE
        assert importer("alloc", 500 * MIB)[0] == 2
    assert importer("free_async", at) == 0
    if end != "killed":
        assert exporter("free_async", pointer) == 0
        assert exporter("wait") == 0
    assert importer.used() == 0


def test_many_exports_come_and_go_and_nothing_is_left(member: Start, way: Any, books: Any) -> None:
    exporter, importer = member(), member()
    for _ in range(80):
        memory = way.make(exporter)
        result, held = way.hand(exporter, memory, importer)
        assert result == 0
        way.drop(exporter, memory)
        way.let_go(importer, held)
    assert books().devices[0].used_bytes == 0


def test_a_process_that_opens_its_own_memory_by_descriptor_is_charged_once(
    member: Start, socket_path: Callable[[], str]
) -> None:
    way = ByDescriptor(socket_path)
    one, courier = member(), member()
    memory = way.make(one)
    path = socket_path()
    courier.tell("listen", path)
    assert courier.hear() == "listening"
    assert one("send", memory, path) == 0
    (fd,) = courier.hear()
    result, handle = courier("take", fd)
    assert result == 0
    assert courier.used() == SIZE
    back = socket_path()
    one.tell("listen", back)
    assert one.hear() == "listening"
    assert courier("send", handle, back) == 0  # handed on by an importer
    (fd,) = one.hear()
    result, again = one("take", fd)
    assert result == 0
    courier.kill()
    assert one.used() == SIZE
    for handle in {memory, again}:
        assert one("release", handle) == 0
    wait_until(lambda: one.used() == 0)


def test_in_a_pid_namespace_of_its_own_an_importer_finds_the_tenant_s_memory(
    member: Start, limited_env: dict[str, str], start_process: Any, socket_path: Callable[[], str]
) -> None:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    from .sharing import PROGRAM

    way = ByDescriptor(socket_path)
    importer = member()
    env = limited_env | {"GPULIMIT_SIM_PROFILE": "small", "GPULIMIT_MEMORY": "1GiB"}
    argv = ["unshare", "--pid", "--fork", "--mount-proc", "python3", str(PROGRAM)]
    exporter = Member(start_process(argv, env=env, stdin=-1))
    assert exporter("start") == 0
    memory = way.make(exporter)
    assert way.hand(exporter, memory, importer)[0] == 0
    assert importer.used() == SIZE
