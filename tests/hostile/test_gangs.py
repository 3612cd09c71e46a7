# SPDX-License-Identifier: Apache-2.0
"""Attempts to join another's gang, whose members have their turns together."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import remove_segments
from tests.daemon.conftest import Daemon, needs_root
from tests.hostile.conftest import Groups, Hostile

pytestmark = needs_root()
DONE, REFUSED = 200, 422
Start = Callable[..., Daemon]
JOINS = 'say(answer=register({name!r}, {{"GPULIMIT_GANG": {gang!r}}})[0]); hear()'


@pytest.fixture
def containers() -> Iterator[tuple[str, str]]:
    names = uuid.uuid4().hex * 2, uuid.uuid4().hex * 2
    yield names
    for name in names:
        remove_segments(f"container-{name[:12]}")


def gangs(node: Daemon) -> dict[str, list[str]]:
    return {gang["id"]: gang["members"] for gang in node.state()["gangs"]}


def test_another_user_joins_no_gang_by_its_name(
    daemon: Start,
    attack: Hostile,
    client: Any,
    tenant: str,
    other_tenant: str,
    attacker_uid: int,
    victim_uid: int,
) -> None:
    node = daemon()
    client(gang="job", uid=victim_uid)
    one = attack(JOINS.format(name=other_tenant, gang="job"), uid=attacker_uid)
    assert one.heard() == {"answer": DONE}
    assert gangs(node) == {f"uid:{victim_uid}/job": [tenant], f"uid:{attacker_uid}/job": [other_tenant]}
    one.tell(None)


def test_a_gangs_name_cannot_reach_into_another_scope(
    daemon: Start, attack: Hostile, client: Any, other_tenant: str, attacker_uid: int, victim_uid: int
) -> None:
    node = daemon()
    client(gang="job", uid=victim_uid)
    for name in (f"uid:{victim_uid}/job", "../job", "research/llama", "job\n", "job\0"):
        one = attack(JOINS.format(name=other_tenant, gang=name), uid=attacker_uid)
        assert one.heard() == {"answer": REFUSED}
        one.tell(None)
    assert list(gangs(node)) == [f"uid:{victim_uid}/job"]


def test_a_container_joins_neither_another_nor_the_user_of_its_number(
    daemon: Start,
    attack: Hostile,
    control_group: Groups,
    client: Any,
    tenant: str,
    containers: tuple[str, str],
    victim_uid: int,
) -> None:
    node = daemon()
    client(gang="job", uid=victim_uid)
    inside = [
        attack(JOINS.format(name="", gang="job"), uid=victim_uid, group=control_group(f"docker-{name}.scope"))
        for name in containers
    ]
    assert [one.heard() for one in inside] == [{"answer": DONE}] * 2
    found = gangs(node)
    assert found.pop(f"uid:{victim_uid}/job") == [tenant]
    assert found == {f"container:{name[:12]}/job": [f"container-{name[:12]}"] for name in containers}
    for name in containers:  # an operator's word joins them
        target = f"/v1/tenants/container-{name[:12]}/quota"
        assert node.ask("PATCH", target, {"gang": "job"})[0] == DONE
    assert set(gangs(node)["container:*/job"]) == {f"container-{name[:12]}" for name in containers}
    for one in inside:
        one.tell(None)


def test_a_user_sees_no_gangs_of_others(
    daemon: Start, attack: Hostile, client: Any, tenant: str, attacker_uid: int, victim_uid: int
) -> None:
    daemon()
    client(gang="job", uid=victim_uid)
    one = attack('say(gangs=ask("GET", "/v1/state")[2]["gangs"])', uid=attacker_uid)
    assert one.heard() == {"gangs": []}
