# SPDX-License-Identifier: Apache-2.0
"""The whole program on a pseudo-terminal: against a real daemon, and against hostile exporters."""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hypervisor.top.row import Row
from hypervisor.top.screen.actions import difference, said_in, typed, why_not
from hypervisor.top.table import Line
from tests.daemon.conftest import eventually
from tests.remote.exporters import endless, exporter, hang, head, page
from tests.top.nodes import NODE
from tests.top.test_fleet import address, good

GIB = 1 << 30
DOWN, ENTER, ESCAPE, CTRL_C, CTRL_Z = "\x1b[B", "\r", "\x1b", "\x03", "\x1a"
CLEAR = "\x15"
CLOCK = re.compile(r"\d\d:\d\d:\d\d")
LEFT_ALTERNATE = b"\x1b[?1049l"


def test_a_tenant_is_suspended_resumed_and_given_another_quota_from_the_screen(
    node, work, terminal, tenant
) -> None:
    served = node()
    work("", "--seconds", "60", "--memory", "100MiB", memory="4GiB", compute=50)
    served.until(lambda s: s.of("client_share_achieved_ratio", tenant=tenant))
    screen = terminal(columns=100, lines=30)
    screen.until(lambda text: tenant in text and "4.0G" in text and "z suspend" in text)
    screen.type(DOWN)
    screen.type("z")
    screen.until(lambda text: f"Suspend {tenant}?" in text)
    screen.type("n")
    screen.until(lambda text: "Suspend" not in text)
    assert served.daemon.tenant(tenant)["suspended"] is False, "nothing is done unless it is confirmed"
    screen.type("z")
    screen.until(lambda text: f"Suspend {tenant}?" in text)
    screen.type("y")
    screen.until(lambda text: re.search(rf"{tenant} +suspended", text))
    assert served.daemon.tenant(tenant)["suspended"] is True
    screen.type("r")
    screen.until(lambda text: f"Resume {tenant}?" in text)
    screen.type("y")
    eventually(lambda: served.daemon.tenant(tenant)["suspended"] is False)
    screen.until(lambda text: not re.search(rf"{tenant} +suspended", text))
    screen.type("e")
    # In the words in which a person would set it.
    screen.until(lambda text: f"Quota of {tenant}" in text and re.search(r"memory +4GiB", text))
    screen.type(CLEAR)
    screen.until(lambda text: "empty: no limit" in text)
    screen.type(f"2GiB{ENTER}")
    screen.until(lambda text: "memory: 4GiB → 2GiB" in text)
    screen.type("y")
    eventually(lambda: served.daemon.tenant(tenant)["gpus"][0]["memory_limit_bytes"] == 2 * GIB)
    screen.until(lambda text: re.search(rf"{tenant}.* 2\.0G", text))
    screen.type("e")
    screen.until(lambda text: f"Quota of {tenant}" in text)
    screen.type(CLEAR)
    screen.until(lambda text: "empty: no limit" in text)
    screen.type("lots")
    screen.until(lambda text: re.search(r"memory +lots", text))
    screen.type(ENTER)
    screen.until(lambda text: "lots" in text and "Quota of" not in text)
    assert served.daemon.tenant(tenant)["gpus"][0]["memory_limit_bytes"] == 2 * GIB
    screen.type("q")
    assert screen.wait() == 0
    assert LEFT_ALTERNATE in screen.raw


def test_the_daemon_may_go_and_come_back(node, work, terminal, tenant) -> None:
    served = node()
    work("", "--seconds", "60", "--idle", "--memory", "100MiB", memory="4GiB")
    served.until(lambda s: s.of("client_info", tenant=tenant))
    screen = terminal("--interval", "0.3", columns=120, lines=30)
    screen.until(lambda text: tenant in text and "no daemon" not in text)
    served.daemon.stop()
    screen.until(lambda text: "no daemon" in text and "GPU 0" in text and tenant in text)
    node()
    screen.until(lambda text: "no daemon" not in text and "GPU 0" in text)
    screen.type(CTRL_C)
    assert screen.wait() == 0


@pytest.mark.timeout(240)
def test_hostile_exporters_do_nothing_to_the_screen_but_are_counted(terminal) -> None:
    name = b"\x1b]0;owned\x07\x1b[2J\x1b[31mH\xc2\x9b1000"
    evil = (
        b'gpulimit_gpu_utilization_ratio{gpu_uuid="a",gpu_index="0"} 0.42\n'
        b'gpulimit_gpu_info{gpu_uuid="a",gpu_index="0",gpu_name="' + name + b'"} 1\n'
        b'gpulimit_client_info{tenant="x\\",host=\\"gpu-b\\n\\n",gpu_uuid="a",gpu_index="0"} 1\n'
        + b"".join(b'm{a="%d"} 1\n' % n for n in range(90_000))
    )
    with ExitStack() as stack:
        hosts = [
            stack.enter_context(exporter(behaviour))
            for behaviour in (
                good(),
                page(evil),
                endless(b"\x1b[2J" * 20_000, head("A: b")),
                hang,
            )
        ]
        names = [address(host) for host in hosts]
        screen = terminal("--hosts", ",".join(names), "--interval", "1", columns=140, lines=30)
        wanted = {"42%", "samples not taken over", "page is too large", "no answer in time"}
        seen: set[str] = set()  # one look may be the first of one node and the third of another

        def is_all_seen(text: str) -> bool:
            seen.update(part for part in wanted if part in text)
            return seen == wanted and "no answer in time" in text

        screen.until(is_all_seen, within_s=60)
        # The others are as they were; on a busy machine one of their looks may be late.
        screen.until(lambda text: re.search(rf"{names[0]} +up +▅ +50%", text), within_s=60)
        screen.type("]]")
        shown = ("GPU 0", "42%", "]0;owned[2J[31mH1000", 'x",host="gpu-b')  # as text
        screen.until(lambda text: all(part in text for part in shown), within_s=60)
        screen.type("q")
        assert screen.wait() == 0
    assert b"\x1b]0;owned" not in screen.raw
    assert b"\x1b[2J" not in screen.raw


def test_a_dumb_terminal_gets_plain_pages(terminal) -> None:
    screen = terminal("--interval", "0.3", columns=100, lines=300, TERM="dumb")  # two pages fit
    screen.until(lambda text: text.count("GPU 0") >= 2)
    assert b"\x1b" not in screen.raw
    screen.type(CTRL_C)
    assert screen.wait() == 130


def test_a_terminal_without_unicode_gets_letters(terminal) -> None:
    screen = terminal(columns=100, lines=30, LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    text = screen.until(lambda text: "GPU 0" in text and "|" not in text)
    assert text.isascii()
    screen.type("q")
    assert screen.wait() == 0


@pytest.mark.parametrize(
    "variables",
    [
        {"TERM": "linux", "COLORTERM": ""},
        {"NO_COLOR": "1"},
    ],
    ids=lambda variables: "-".join(variables),
)
def test_few_colours_or_none_leave_everything_to_be_seen(terminal, variables: dict[str, str]) -> None:
    screen = terminal(columns=100, lines=30, **variables)
    screen.until(lambda text: "GPU 0" in text and "q quit" in text)
    assert all(ink != ground for ink, ground in screen.colours())
    if "NO_COLOR" in variables:
        assert {colour for pair in screen.colours() for colour in pair} == {"default", "default-reversed"}
    screen.type("q")
    assert screen.wait() == 0


def test_a_terminal_that_goes_away_ends_the_program(terminal) -> None:
    screen = terminal()
    screen.until(lambda text: "GPU 0" in text)
    screen.hang_up()
    assert screen.process.wait(timeout=10) is not None


MODES = (1049, 25, 1000, 1003, 1006, 2004)
"""Private modes: the alternate screen, the cursor, the mouse, bracketed paste."""


def is_as_it_was(raw: bytes) -> bool:
    """True if the last word on each of the terminal's modes is that of a terminal before the program."""
    for mode in MODES:
        on, off = (raw.rfind(f"\x1b[?{mode}{way}".encode()) for way in "hl")
        is_on = on > off
        if is_on != (mode == 25) and max(on, off) >= 0:
            return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_leaves_the_terminal_as_it_was(terminal, number: signal.Signals) -> None:
    screen = terminal()
    before = screen.settings()
    screen.until(lambda text: "GPU 0" in text)
    assert not is_as_it_was(screen.raw) and screen.settings() != before
    screen.process.send_signal(number)
    assert screen.wait() == 128 + number
    assert is_as_it_was(screen.raw) and screen.settings() == before


@pytest.mark.parametrize("way", ["key", "signal"])
def test_it_can_be_stopped_and_goes_on(terminal, way: str) -> None:
    screen = terminal()
    before = screen.settings()
    screen.until(lambda text: "GPU 0" in text)
    for _ in range(2):
        screen.type(CTRL_Z) if way == "key" else screen.process.send_signal(signal.SIGTSTP)
        eventually(lambda: screen.read(0.05) or state_of(screen.process.pid) == "T")
        assert is_as_it_was(screen.raw) and screen.settings() == before
        place = len(screen.raw)
        screen.process.send_signal(signal.SIGCONT)
        eventually(lambda at=place: screen.read(0.05) or b"\x1b[?1049h" in screen.raw[at:])
        then = screen.until(CLOCK.search)
        screen.until(lambda text, then=then: CLOCK.findall(text)[:1] != CLOCK.findall(then)[:1])
    screen.type("q")
    assert screen.wait() == 0 and is_as_it_was(screen.raw)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    ("row", "changed", "many", "why"),
    [
        (None, {}, False, "cursor"),
        ("card", {}, False, "cursor"),
        ("tenant", {}, True, "on the node itself"),
        ("tenant", {"has_daemon": False}, False, "needs the daemon"),
        ("tenant", {"may_change": False}, False, "only root"),
        ("tenant", {}, False, ""),
    ],
)
def test_why_something_cannot_be_changed_is_said(row, changed, many, why) -> None:
    chosen = Row(Line(), row, "h", "c", "team-a") if row else None
    said = why_not(chosen, replace(NODE, **changed), has_many=many)
    assert why in said
    assert bool(said) == bool(why)


def test_a_name_that_could_be_another_address_is_not_sent() -> None:
    assert "not a name" in why_not(Row(Line(), "tenant", "h", "c", "../../v1/state"), NODE, has_many=False)


def test_quotas_are_shown_as_they_are_typed() -> None:
    said = {"memory": f"*={4 * GIB}B", "compute": "*=50", "tenant": "a"}
    assert said_in({"quota": said}) == {"memory": "4GiB", "compute": "50"}
    assert said_in({"quota": {"memory": "GPU-1=5B,GPU-2=6B"}}) == {"memory": "GPU-1=5B,GPU-2=6B"}
    assert said_in(None) == said_in({"quota": 5}) == {}
    assert typed("1536MiB") == "1536MiB"
    assert typed(f"{1536 << 20}B") == "1536MiB"
    assert difference({"memory": "4GiB"}, {"compute": "5"}) == "memory: 4GiB → none\ncompute: none → 5"
