# SPDX-License-Identifier: Apache-2.0
"""Dialogs: the confirmation of a change, the quota form, and the help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from hypervisor.top.bars import KEYS

PARTS = ("memory", "compute", "request", "weight", "priority", "memory_wait", "gang")
EXAMPLES = {
    "memory": "4GiB or 50%; empty: no limit",
    "compute": "percent of a GPU, 1-100; empty: no limit",
    "request": "percent that is guaranteed; empty: none",
    "weight": "share of time against other tenants; empty: 100",
    "priority": "high, normal or low",
    "memory_wait": "seconds to wait for memory; empty: none",
    "gang": "off, auto or a job's name; empty: auto",
}


class Confirm(ModalScreen[bool]):
    """Asks for the confirmation of an action. Escape and N mean no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n,escape,q", "answer(False)", show=False),
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, consequence: str, verb: str) -> None:
        super().__init__()
        self._question, self._consequence, self._verb = question, consequence, verb

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog small"):
            yield Label(Text(self._question), classes="question")
            yield Label(Text(self._consequence), classes="consequence")
            with Horizontal(classes="buttons"):
                yield Button(Text(f"Yes, {self._verb} (y)"), id="yes", variant="warning")
                yield Button(Text("No (n)"), id="no")

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class QuotaForm(ModalScreen[dict[str, str] | None]):
    """Asks for a tenant's whole quota. The result is None if the user cancels."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", show=False)]

    def __init__(self, tenant: str, said: Mapping[str, str], source: str) -> None:
        super().__init__()
        self._tenant, self._said, self._source = tenant, said, source

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog"):
            yield Label(Text(f"Quota of {self._tenant}"), classes="question")
            yield Label(Text(f"source now: {self._source or 'none'}. Enter sets it, Esc leaves it."))
            with Grid(classes="form"):
                for part in PARTS:
                    yield Label(Text(part))
                    yield Input(
                        self._said.get(part, ""),
                        id=part,
                        placeholder=EXAMPLES[part],
                        max_length=200,
                        compact=True,
                    )
            with Horizontal(classes="buttons"):
                yield Button(Text("Set"), id="set", variant="warning")
                yield Button(Text("Leave it"), id="leave")

    def on_mount(self) -> None:
        self.query_one("#memory").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        # Deferred: characters typed just before Enter may not have reached the field yet.
        event.input.call_later(self._set)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "set":
            self._set()
        else:
            self.dismiss(None)

    def action_leave(self) -> None:
        self.dismiss(None)

    def _set(self) -> None:
        said = {part: self.query_one(f"#{part}", Input).value.strip() for part in PARTS}
        self.dismiss({part: text for part, text in said.items() if text})


class Help(ModalScreen[None]):
    """All keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,h,f1,enter,space", "dismiss", show=False)
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide"):
            yield Label(Text("Keys"), classes="question")
            with Grid(classes="keys"):
                for key in KEYS:
                    yield Label(Text(key.keys), classes="key")
                    yield Label(Text(key.does))
            yield Static(Text(LEGEND), classes="consequence")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


LEGEND = (
    "\nGOT: the tenant's part of the card in the last second. DUE: the part that it may have beside the "
    "tenants active now; ┃ marks it in the bar of SHARE. THROT: yes if the tenant waited for a tenth or more "
    "of that second. WAITED: total time that its threads waited. REFUSED: number of refused allocations. "
    "UNLIMITED: a process of the tenant runs without its quota. & behind NOW: the tenant is in a gang, whose "
    "processes wait for each other and get GPU time together.\n\n"
    "Nodes: each symbol in GPUS is a card, from ▁ idle to █ busy; x is a lost card. Behind a node's name, "
    "~ means that the last reading failed and older figures are shown, x that the node is down."
)
