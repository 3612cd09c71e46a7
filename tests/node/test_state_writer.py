# SPDX-License-Identifier: Apache-2.0
"""A state file that a thread writes: on a disk that takes its time, and on one that fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.errors import StateError
from hypervisor.node.state_file import StateFile
from hypervisor.node.state_writer import StateWriter

WITHIN_S = 10.0


class SlowFile(StateFile):
    """A file whose writes wait until they may go on, and may fail."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_go_on = threading.Event()
        self.begun = threading.Semaphore(0)
        self.written: list[str] = []
        self.error = ""

    def write(self, text: str, *, is_durable: bool) -> None:
        self.begun.release()
        assert self.may_go_on.wait(WITHIN_S)
        if self.error:
            raise StateError(self.error)
        super().write(text, is_durable=is_durable)
        self.written.append(text)


@pytest.fixture
def file(tmp_path: Path) -> SlowFile:
    return SlowFile(tmp_path / "tenants.json")


@pytest.fixture
def outcomes() -> list[str]:
    return []


@pytest.fixture
def writer(file: SlowFile, outcomes: list[str]) -> Iterator[StateWriter]:
    made = StateWriter(file, outcomes.append)
    yield made
    file.may_go_on.set()
    made.close()


def test_a_slow_disk_keeps_nobody_waiting_and_the_newest_text_is_written(file, writer, outcomes) -> None:
    begin_s = time.monotonic()
    writer.write("1")
    assert file.begun.acquire(timeout=WITHIN_S)
    for text in ("2", "3", "2"):
        writer.write(text)
    asyncio.run(writer.settled(0.05))
    assert not outcomes
    assert time.monotonic() - begin_s < WITHIN_S / 2
    file.may_go_on.set()
    asyncio.run(writer.settled(WITHIN_S))
    assert file.written == ["1", "2"]
    assert outcomes == ["", ""]
    assert file.path.read_text() == "2"
    writer.write("2")
    asyncio.run(writer.settled(WITHIN_S))
    assert file.written == ["1", "2"]


def test_a_text_that_could_not_be_written_can_be_asked_for_again(file, writer, outcomes) -> None:
    file.may_go_on.set()
    file.error = "no space left"
    writer.write("1")
    asyncio.run(writer.settled(WITHIN_S))
    file.error = ""
    writer.write("1")
    asyncio.run(writer.settled(WITHIN_S))
    assert outcomes == ["no space left", ""]
    assert file.path.read_text() == "1"


def test_the_end_waits_for_the_last_text(file, outcomes) -> None:
    writer = StateWriter(file, outcomes.append)
    writer.write("1")
    file.may_go_on.set()
    writer.close()
    assert file.path.read_text() == "1"
