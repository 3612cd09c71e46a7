# SPDX-License-Identifier: Apache-2.0
"""Filters and orders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hypervisor.top.model import CardView, NodeView, TenantView
from hypervisor.top.view_state import (
    EVERYTHING,
    FilterError,
    ViewState,
    cards_shown,
    filter_of,
    nodes_shown,
    processes_shown,
    tenants_shown,
    users_of,
)
from tests.top.nodes import BATCH, CARD, FULL_NODE, IDLE, LOST, NODE, QUIET, STRANGER, TEAM_A


def names(text: str) -> list[str]:
    view = ViewState(filter=filter_of(text))
    return [t.name for _, here in cards_shown(NODE, view) for tenants in here.values() for t in tenants]


def on_card(node: NodeView, card: CardView, view: ViewState) -> list[TenantView]:
    return tenants_shown(node, card, card.tenants, view, users_of(node))


def cards(node: NodeView, text: str) -> list[CardView]:
    return [card for card, _ in cards_shown(node, ViewState(filter=filter_of(text)))]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", {"batch", "notebook", "research/train-0", "rogue"}),
        ("train", {"research/train-0"}),
        ("TRAIN", {"research/train-0"}),
        ("user:alice !batch", {"notebook", "research/train-0", "rogue"}),
        ("share>29", {"batch", "research/train-0"}),
        ("state:idle", {"notebook"}),
        ("state:off", {"rogue"}),
        ("throttled", {"research/train-0"}),
        ("mem>=97", {"batch", "rogue"}),
        ("!state:runs", {"notebook"}),
        ("nobody", set()),
        # It means the card, and so everybody on it.
        ("gpu:h100 util>50", {"batch", "notebook", "research/train-0", "rogue"}),
    ],
)
def test_filters_choose_tenants(text: str, shown: set[str]) -> None:
    assert set(names(text)) == shown


def test_filters_choose_cards_processes_and_nodes() -> None:
    assert cards(FULL_NODE, "state:lost") == [LOST]
    assert cards(FULL_NODE, "temp>60") == [CARD]
    assert [p.pid for p in processes_shown(NODE, ViewState(filter=filter_of("state:unregistered")))] == [7777]
    other = replace(NODE, host="gpu-b7", cards=(QUIET,))
    assert nodes_shown([NODE, other], ViewState(filter=filter_of("batch"))) == [NODE]
    assert nodes_shown([NODE, other], ViewState(filter=filter_of("node:b7"))) == [other]


@pytest.mark.parametrize("text", ["share>lots", "colour:red", "util:>5", "x" * 201])
def test_a_filter_that_means_nothing_says_so(text: str) -> None:
    with pytest.raises(FilterError):
        filter_of(text)


def test_an_unknown_number_never_matches() -> None:
    assert on_card(NODE, CARD, ViewState(filter=filter_of("share<1000"))) != []
    unknown = replace(CARD, tenants=(replace(TEAM_A, got=None),))
    node = replace(NODE, cards=(unknown,))
    assert on_card(node, unknown, ViewState(filter=filter_of("share<1000"))) == []
    assert on_card(node, unknown, ViewState(filter=filter_of("!share>1000"))) == []


@pytest.mark.parametrize(
    ("sort", "first"), [("name", BATCH), ("share", BATCH), ("memory", BATCH), ("waited", TEAM_A)]
)
def test_tenants_are_sorted(sort: str, first: object) -> None:
    shown = on_card(NODE, CARD, ViewState(sort=sort))
    assert shown[0] == first
    assert on_card(NODE, CARD, ViewState(sort=sort, is_reversed=True)) != shown
    assert {t.name for t in shown} == {t.name for t in (TEAM_A, BATCH, IDLE, STRANGER)}


def test_nodes_are_sorted() -> None:
    down = replace(NODE, host="z", health="down", cards=())
    busy = replace(NODE, host="y", cards=(CARD,))
    assert [n.host for n in nodes_shown([busy, NODE, down], ViewState(node_sort="state"))] == [
        "z",
        "y",
        "gpu-a1",
    ]
    assert nodes_shown([NODE, busy], ViewState(node_sort="util"))[0] == busy
    assert EVERYTHING.holds  # nothing is left out unless asked for


def test_a_tenant_is_not_shown_on_cards_that_it_does_not_use() -> None:
    resting = replace(TEAM_A, memory_bytes=0.0, gpu_s=0.0, got=0.0)
    waiting = replace(BATCH, name="new", memory_bytes=None, gpu_s=None, got=None)
    node = replace(NODE, cards=(CARD, replace(QUIET, tenants=(resting, waiting))))
    second = node.cards[1]
    assert [t.name for t in on_card(node, second, ViewState())] == ["new"], "it uses none yet"
    assert len(on_card(node, second, ViewState(has_all=True))) == 2


def test_a_filter_finds_tenants_on_mig_devices() -> None:
    ((card, here),) = cards_shown(FULL_NODE, ViewState(filter=filter_of("slice")))
    assert card.index == 4
    assert {uuid: [t.name for t in tenants] for uuid, tenants in here.items() if tenants} == {
        "MIG-1": ["ml/slice-7"]
    }
