# SPDX-License-Identifier: Apache-2.0
"""Lines: they fit every width, and say what there is and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hypervisor.top.history import History
from hypervisor.top.model import CardView, NodeView, totals_of
from hypervisor.top.node_rows import node_rows
from hypervisor.top.page import page, plain, problem_lines
from hypervisor.top.text import ASCII, UNICODE, width_of
from hypervisor.top.view_state import ViewState, filter_of
from tests.top.nodes import CARD, FULL_NODE, MIG_CARD, NODE, QUIET, history

WIDTHS = (20, 39, 60, 80, 100, 120, 160, 200, 300)
VIEWS = (
    ViewState(),
    ViewState(glyphs=ASCII),
    ViewState(is_compact=True),
    ViewState(sort="share", is_reversed=True),
)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", VIEWS)
def test_lines_fit_every_width(width: int, view: ViewState) -> None:
    wide = replace(NODE, host="東京-gpu-1", cards=(replace(CARD, name="名前" * 40), CardView("GPU-x")))
    nodes = [
        FULL_NODE,
        wide,
        replace(
            NODE, cards=(replace(CARD, tenants=tuple(replace(t, gang="東京/job") for t in CARD.tenants)),)
        ),
        replace(NODE, host="down", health="down", cards=(), problems=("refused " * 30,)),
    ]
    for line in page(nodes, view, history(*nodes), width=width, now_s=120.0):
        assert width_of(line.text) <= width, line.text


def test_ascii_is_ascii() -> None:
    text = plain(page([FULL_NODE, NODE], ViewState(glyphs=ASCII), history(FULL_NODE), width=200, now_s=120.0))
    assert text.isascii()


def shown(node: NodeView, view: ViewState | None = None, width: int = 120) -> str:
    return plain(page([node], view or ViewState(), history(node), width=width, now_s=120.0))


def test_a_bare_card_shows_nothing_of_vgpus_and_mig() -> None:
    text = shown(NODE)
    assert "vGPU" not in text
    assert "MIG" not in text
    full = shown(FULL_NODE)
    assert "vGPU  SR-IOV  fixed share  ARR on  slice 2 ms  2 instances" in full
    assert "vm c2f0b6de-1b0e-4b27-b3f5-9a1f2f0f7a10" in full
    assert "unlicensed" in full
    assert "MIG 1g.10gb" in full
    assert "gi 7 ci 0" in full


def test_that_a_card_could_have_partitions_is_no_line() -> None:
    assert "MIG" not in shown(replace(NODE, cards=(replace(QUIET, mig_mode=False),)))
    assert "MIG  on, no instances" in shown(replace(NODE, cards=(replace(MIG_CARD, migs=()),)))


def test_what_is_wrong_with_a_card_is_said_in_words() -> None:
    text = shown(FULL_NODE)
    assert "LOST" in text
    assert "1 no quota  power cap" in text
    failed = replace(CARD, error="GPU is not responding")
    assert "GPU is not responding" in shown(replace(NODE, cards=(failed,)))


def test_a_tenant_that_is_not_limited_stands_out() -> None:
    assert [line for line in shown(NODE, width=80).split("\n") if " rogue " in line and "UNLIMITED" in line]


def test_a_gang_is_a_mark_in_80_columns_and_a_column_where_there_is_room() -> None:
    gang = "team-a/train"
    tenants = tuple(replace(one, gang=gang if one.name == "batch" else "") for one in CARD.tenants)
    node = replace(NODE, cards=(replace(CARD, tenants=tenants),))
    narrow, wide = shown(node, width=80).split("\n"), shown(node, width=200).split("\n")
    assert [line.split()[0] for line in narrow if "runs &" in line] == ["batch"]
    assert not any("GANG" in line for line in narrow)
    assert [line.split()[0] for line in wide if gang in line] == ["batch"]
    assert any("GANG" in line for line in wide)
    assert "GANG" not in shown(NODE, width=300)
    plain_lines = shown(replace(NODE, cards=(CARD,)), width=80).split("\n")
    assert [one.replace("runs &", "runs  ") for one in narrow] == plain_lines


def test_cards_become_one_line_each_where_they_would_not_fit() -> None:
    cards = tuple(replace(QUIET, uuid=f"GPU-{i}", index=i) for i in range(8))
    node = replace(NODE, cards=cards)
    assert len(node_rows(node, ViewState(), history(node), width=80, height=20)) == 16
    assert len(node_rows(node, ViewState(), history(node), width=80, height=15)) == 8
    assert len(node_rows(node, ViewState(is_compact=False), history(node), width=80, height=15)) == 16
    assert len(node_rows(node, ViewState(is_compact=True), history(node), width=80, height=20)) == 8


def test_folding_hides_what_is_on_the_card() -> None:
    text = shown(NODE, ViewState(folded=frozenset({(NODE.host, CARD.uuid)}), has_processes=False))
    assert "batch" not in text
    assert "4 tenants folded" in text
    assert UNICODE.folded in text


def test_nothing_that_matches_is_said() -> None:
    assert "nothing here matches 'zzz'" in shown(NODE, ViewState(filter=filter_of("zzz")))
    assert "no GPUs" in shown(NodeView("n", "up"))
    assert "waiting for the first answer" in shown(NodeView("n"))


def test_problems_are_wrapped_and_whole() -> None:
    problem = " ".join(f"word{i}" for i in range(40))
    lines = problem_lines(replace(NODE, problems=(problem,)), ViewState(), 60)
    assert len(lines) > 3
    assert " ".join(" ".join(line.text for line in lines).replace("!", "").split()) == problem


def test_totals_leave_out_what_is_down_or_not_known() -> None:
    down = replace(NODE, host="b", health="down")
    totals = totals_of((FULL_NODE, down))
    assert (totals.nodes, totals.up, totals.down, totals.cards, totals.bad_cards) == (2, 1, 1, 5, 1)
    assert totals.utilization == pytest.approx((0.76 + 0.0 + 0.4) / 3)
    assert totals.waiting == 1


def test_graphs_are_of_one_host_s_card() -> None:
    made = History()
    twin = replace(NODE, host="other", cards=(replace(CARD, utilization=0.1),))
    made.note((NODE, twin), totals_of((NODE, twin)))
    assert list(made.of(NODE.host, CARD.uuid, "util")) == [0.76]
    assert list(made.of("other", CARD.uuid, "util")) == [0.1]
    made.note((replace(NODE, health="stale"),), totals_of((NODE,)))
    assert list(made.of(NODE.host, CARD.uuid, "util")) == [0.76, None]
    assert list(made.of("other", CARD.uuid, "util")) == []
