# SPDX-License-Identifier: Apache-2.0
"""What the library and the Python side both know has one home, or a comparison here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from limiter._native import lib

from hypervisor.config.settings import Settings
from hypervisor.node.registry import MAX_WORKERS
from limiter import paths, quota, segment
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
    assert re.findall(r'#define USUAL_SOCKET "(.*)"', text) == [paths.DAEMON_SOCKET]
    assert Settings().socket == paths.DAEMON_SOCKET
    assert with_text(f'"{paths.DAEMON_SOCKET}"') == {"csrc/daemon/address.c", "limiter/paths.py"}


@pytest.mark.parametrize("prefix", [segment.PREFIX, segment.POLICY_PREFIX])
def test_the_prefix_of_segments_stands_once(prefix: str) -> None:
    assert with_text(f'"{prefix}"') == {"csrc/layout.h"}


def test_the_classes_of_priority_are_those_of_the_parser() -> None:
    assert get_args(quota.Priority) == quota.PRIORITIES
    assert [PriorityClass.of(name) for name in quota.PRIORITIES] == sorted(PriorityClass)
    for name in quota.PRIORITIES:
        assert quota.read({"GPULIMIT_PRIORITY": name}).priority == PriorityClass.of(name).quota_name == name


def test_a_tenant_has_as_many_workers_as_its_segment_has_slots() -> None:
    assert MAX_WORKERS == lib.GL_MAX_SLOTS
