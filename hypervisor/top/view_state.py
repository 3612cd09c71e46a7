# SPDX-License-Identifier: Apache-2.0
"""The user's choice of order, filter and folded cards, and its application to nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from hypervisor.top.model import CardView, NodeView, ProcessView, TenantView
from hypervisor.top.text import UNICODE, Glyphs

SORTS = ("name", "share", "memory", "waited")
"""Sort keys of tenants and processes."""
NODE_SORTS = ("name", "util", "memory", "temp", "state")
MAX_FILTER_CHARS = 200
CONDITION = re.compile(r"(!?)([a-z]+)(>=|<=|=|>|<|:)(.+)")
NUMBERS = ("util", "mem", "temp", "power", "share")
WORDS = ("name", "user", "state", "gpu", "node", "cmd")


@dataclass(frozen=True, slots=True)
class FilterSubject:
    """Fields that a filter tests: text by name, and numbers in the shown units (percent, °C, W)."""

    words: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float | None] = field(default_factory=dict)


class FilterError(ValueError):
    """A filter that cannot be parsed; `str()` gives the reason."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that must all hold."""

    text: str = ""
    conditions: tuple[Callable[[FilterSubject], bool], ...] = ()

    def holds(self, subject: FilterSubject) -> bool:
        return all(condition(subject) for condition in self.conditions)


EVERYTHING = Filter()


def filter_of(text: str) -> Filter:
    """Return a filter: words that must occur in any field, `field:word`, `field>number`. `!` negates.

    Raises FilterError.
    """
    if len(text) > MAX_FILTER_CHARS:
        raise FilterError(f"a filter has at most {MAX_FILTER_CHARS} characters")
    return Filter(text.strip(), tuple(condition_of(term) for term in text.lower().split()))


def condition_of(term: str) -> Callable[[FilterSubject], bool]:
    match = CONDITION.fullmatch(term)
    if match is None:
        is_negated, word = term.startswith("!") and len(term) > 1, term
        word = term[1:] if is_negated else term
        return lambda subject: any(word in text.lower() for text in subject.words.values()) is not is_negated
    negation, name, sign, wanted = match.groups()
    if name in NUMBERS:
        return number_condition(name, sign, wanted, is_negated=bool(negation))
    if name in WORDS and sign in (":", "="):
        return lambda subject: (wanted in subject.words.get(name, "").lower()) is not bool(negation)
    known = ", ".join((*WORDS, *NUMBERS))
    raise FilterError(f"{term!r}: fields are {known}; words go with `:`, numbers with `>`, `<` and `=`")


def number_condition(
    name: str, sign: str, wanted: str, *, is_negated: bool
) -> Callable[[FilterSubject], bool]:
    try:
        limit = float(wanted.rstrip("%"))
    except ValueError:
        raise FilterError(f"{wanted!r} is not a number, as {name}{sign} needs") from None
    compare: Callable[[float], bool] = {
        ">": lambda v: v > limit,
        "<": lambda v: v < limit,
        ">=": lambda v: v >= limit,
        "<=": lambda v: v <= limit,
    }.get(sign, lambda v: round(v) == round(limit))

    def holds(subject: FilterSubject) -> bool:
        value = subject.numbers.get(name)
        return value is not None and compare(value) is not is_negated

    return holds


def percent_of(value: float | None) -> float | None:
    return None if value is None else value * 100


def node_subject(node: NodeView) -> FilterSubject:
    return FilterSubject({"node": node.host, "state": node.health})


def card_subject(node: NodeView, card: CardView) -> FilterSubject:
    numbers = {
        "util": percent_of(card.utilization),
        "mem": percent_of(card.memory_ratio),
        "temp": card.temperature_c,
        "power": card.power_w,
    }
    words = {
        "node": node.host,
        "gpu": f"{card.index} {card.name} {card.uuid}",
        "state": "lost" if card.is_lost else "error" if card.error else "ok",
    }
    return FilterSubject(words, numbers)


def tenant_subject(node: NodeView, card: CardView, tenant: TenantView) -> FilterSubject:
    here = card_subject(node, card)
    throttled = "throttled" if tenant.is_throttled else ""
    words = here.words | {
        "name": tenant.name,
        "user": tenant.user,
        "cmd": tenant.command,
        "state": f"{tenant.now} {tenant.enforcement} {throttled} {here.words['state']}",
    }
    used = tenant.memory_bytes
    of = tenant.quota_bytes or card.total_bytes
    mem = None if used is None or not of else used / of * 100
    numbers = here.numbers | {"share": percent_of(tenant.got), "mem": mem}
    return FilterSubject(words, numbers)


def process_subject(process: ProcessView) -> FilterSubject:
    words = {
        "name": process.tenant,
        "user": process.user,
        "cmd": process.command,
        "gpu": f"{process.card_index} {process.card}",
        "state": "" if process.tenant else "unregistered",
        "pid": str(process.pid),
    }
    return FilterSubject(words, {"share": percent_of(process.got)})


@dataclass(frozen=True, slots=True)
class ViewState:
    """The user's choices."""

    sort: str = "name"
    node_sort: str = "name"
    is_reversed: bool = False
    filter: Filter = EVERYTHING
    folded: frozenset[tuple[str, str]] = frozenset()
    """(host, uuid) of the cards whose tenants are hidden."""
    is_compact: bool | None = None
    """True to show one line per card; None to do so only if the cards do not fit otherwise."""
    has_processes: bool = True
    has_all: bool = False
    """True to also show tenants and processes on cards where they hold nothing and never ran."""
    glyphs: Glyphs = UNICODE


def users_of(node: NodeView) -> frozenset[str]:
    """Return the names of tenants that use a card of the node."""
    return frozenset(tenant.name for _, tenant in node.tenants() if tenant.has_used)


def tenants_shown(
    node: NodeView, card: CardView, tenants: Iterable[TenantView], view: ViewState, users: frozenset[str]
) -> list[TenantView]:
    """Return the matching tenants of a card or of one of its MIG devices, in order.

    A tenant that only uses other cards is left out, unless `has_all` is set. `users`: see users_of.
    """
    kept = [
        tenant
        for tenant in tenants
        if (view.has_all or tenant.has_used or tenant.name not in users)
        and view.filter.holds(tenant_subject(node, card, tenant))
    ]
    keys: dict[str, Callable[[TenantView], tuple[float, str]]] = {
        "name": lambda t: (0.0, t.name),
        "share": lambda t: (-(t.got or 0.0), t.name),
        "memory": lambda t: (-(t.memory_bytes or 0.0), t.name),
        "waited": lambda t: (-(t.waited_s or 0.0), t.name),
    }
    return sorted(kept, key=keys[view.sort], reverse=view.is_reversed)


def cards_shown(node: NodeView, view: ViewState) -> list[tuple[CardView, dict[str, list[TenantView]]]]:
    """Return the cards that match the filter or hold a matching tenant, each with its tenants by UUID of the
    card or MIG device.
    """
    users = users_of(node)
    shown = [
        (card, {uuid: tenants_shown(node, card, t, view, users) for uuid, t in card.on_parts()})
        for card in node.cards
    ]
    return [
        (card, here)
        for card, here in shown
        if any(here.values()) or view.filter.holds(card_subject(node, card))
    ]


def processes_shown(node: NodeView, view: ViewState) -> list[ProcessView]:
    busy = {p.pid for p in node.processes if p.memory_bytes or p.got} if not view.has_all else set()
    kept = [
        process
        for process in node.processes
        if (process.memory_bytes or process.got or process.pid not in busy)
        and view.filter.holds(process_subject(process))
    ]
    keys: dict[str, Callable[[ProcessView], tuple[float, float, int]]] = {
        "name": lambda p: (0.0 if p.card_index is None else p.card_index, 0.0, p.pid),
        "share": lambda p: (-(p.got or 0.0), 0.0, p.pid),
        "memory": lambda p: (-(p.memory_bytes or 0.0), 0.0, p.pid),
        "waited": lambda p: (0.0, 0.0, p.pid),
    }
    return sorted(kept, key=keys[view.sort], reverse=view.is_reversed)


def nodes_shown(nodes: Sequence[NodeView], view: ViewState) -> list[NodeView]:
    """Return the nodes that match the filter, or that hold a matching card or tenant."""
    kept = [n for n in nodes if view.filter.holds(node_subject(n)) or cards_shown(n, view)]
    order = {"down": 0, "stale": 1, "partial": 2, "new": 3, "up": 4}
    keys: dict[str, Callable[[NodeView], float]] = {
        "name": lambda _: 0.0,
        "util": lambda n: -mean([c.utilization for c in n.cards]),
        "memory": lambda n: -mean([c.memory_ratio for c in n.cards]),
        "temp": lambda n: -max((c.temperature_c or 0.0 for c in n.cards), default=0.0),
        "state": lambda n: float(order[n.health]),
    }
    ordered = sorted(kept, key=keys[view.node_sort])
    return ordered[::-1] if view.is_reversed else ordered


def mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else 0.0
