# SPDX-License-Identifier: Apache-2.0
"""What the library and the Python side both know has one home, or a comparison here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from limiter._native import ffi, lib

from hypervisor.api import server
from hypervisor.config.settings import Settings
from hypervisor.dispatcher import run_queue
from hypervisor.node.commands import CommandName
from hypervisor.node.registry import MAX_WORKERS
from hypervisor.nvml import client, probe
from limiter import container_edits, paths, quota, segment
from limiter.quota import PriorityClass

ROOT = Path(__file__).resolve().parents[2]


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".c", ".h", ".py") and not path.name.startswith("_native"):
                yield path


def with_text(text: str) -> set[str]:
    """Return the files of the product where a text stands."""
    files = sources("csrc", "hypervisor", "limiter")
    return {str(path.relative_to(ROOT)) for path in files if text in path.read_text(encoding="utf-8")}


def test_the_socket_is_where_the_library_looks_for_it() -> None:
    text = (ROOT / "csrc" / "daemon" / "address.c").read_text()
    assert re.findall(r'#define DEFAULT_SOCKET "(.*)"', text) == [paths.DAEMON_SOCKET]
    assert Settings().socket == paths.DAEMON_SOCKET
    assert with_text(f'"{paths.DAEMON_SOCKET}"') == {"csrc/daemon/address.c", "limiter/paths.py"}


def test_containers_get_the_daemons_address_where_the_library_looks_for_it() -> None:
    text = (ROOT / "csrc" / "daemon" / "address.c").read_text()
    assert re.findall(r'#define NODE_FILE "(.*)"', text) == [container_edits.DAEMON_IN_CONTAINER]


@pytest.mark.parametrize(
    "name",
    [
        segment.PREFIX,
        segment.POLICY_PREFIX,
        segment.STATE_NAME,
        segment.LOCK_PREFIX,
        segment.ASIDE_PREFIX,
    ],
)
def test_a_name_in_shared_memory_stands_once(name: str) -> None:
    assert with_text(f'"{name}"') | with_text(f'f"{name}') == {"csrc/layout.h"}
    assert name.startswith(segment.NAME_PREFIX)


def test_a_header_has_room_for_a_tenants_name() -> None:
    assert segment.TENANT.fullmatch("x" * segment.MAX_TENANT_NAME_BYTES)
    assert not segment.TENANT.fullmatch("x" * (segment.MAX_TENANT_NAME_BYTES + 1))
    field = dict(ffi.typeof("struct gl_header").fields)["tenant"].type
    assert field.length == segment.MAX_TENANT_NAME_BYTES + 1 == lib.GL_TENANT_NAME_BYTES


def test_the_daemon_beats_several_times_before_it_counts_as_away() -> None:
    assert 3 * run_queue.HEARTBEAT_NS < lib.GL_MAX_HEARTBEAT_AGE_NS


def test_the_library_knows_the_headers_that_the_daemon_sends() -> None:
    header = re.compile(r"\bGpulimit-[A-Za-z-]*[a-z]\b")
    read = set(header.findall((ROOT / "csrc" / "daemon" / "http.c").read_text()))
    sent = {
        name
        for path in (ROOT / "hypervisor" / "api").glob("*.py")
        for name in header.findall(path.read_text())
    }
    assert read == sent


def test_the_library_knows_the_commands_that_the_daemon_gives() -> None:
    agent = (ROOT / "csrc" / "daemon" / "agent.c").read_text()
    obey = agent[agent.index("*obey(") : agent.index("unknown command")]
    assert set(re.findall(r'"(\w+)"', obey)) == set(get_args(CommandName))


def test_the_daemon_holds_a_request_for_commands_as_long_as_the_library_asks() -> None:
    (seconds,) = re.findall(r"POLL_S = (\d+)", (ROOT / "csrc" / "daemon" / "agent.c").read_text())
    assert int(seconds) <= server.MAX_WAIT_S


def test_all_cards_that_nvml_is_asked_about_have_a_place_in_shared_memory() -> None:
    assert probe.MAX_GPUS == client.MAX_CARDS == lib.GL_MAX_NODE_DEVICES


def test_kinds_have_names_in_the_order_of_their_numbers() -> None:
    text = (ROOT / "csrc" / "layout.h").read_text()
    kinds = re.findall(r"GL_MEM_(\w+) = (\d+)", text)
    assert [(name.lower(), int(at)) for name, at in kinds[:-1]] == [
        (name, at) for at, name in enumerate(segment.MEMORY_KINDS)
    ]
    assert len(segment.MEMORY_KINDS) == lib.GL_MEM_KINDS
    assert len(segment.LAUNCH_KINDS) == lib.GL_LAUNCH_KINDS
    for name, kind in zip(segment.LAUNCH_KINDS, range(lib.GL_LAUNCH_KINDS), strict=True):
        assert getattr(lib, f"GL_{name.upper()}") == kind


def test_the_classes_of_priority_are_those_of_the_parser() -> None:
    assert get_args(quota.Priority) == quota.PRIORITIES
    assert [PriorityClass.of(name) for name in quota.PRIORITIES] == sorted(PriorityClass)
    for name in quota.PRIORITIES:
        assert quota.read({"GPULIMIT_PRIORITY": name}).priority == PriorityClass.of(name).quota_name == name


def test_a_tenant_has_as_many_workers_as_its_segment_has_slots() -> None:
    assert MAX_WORKERS == lib.GL_MAX_SLOTS
