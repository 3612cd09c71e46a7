# SPDX-License-Identifier: Apache-2.0
"""System calls of the daemon that fail for a while: it says what is short, harms nothing, and recovers."""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import mmap
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, CompileC, remove_segments
from tests.daemon.conftest import ask, eventually, needs_root

pytestmark = needs_root()
ORDERS = struct.Struct("16siiii")
CASES = [
    ("accept", errno.EMFILE),
    ("accept", errno.ENFILE),
    ("accept", errno.ENOMEM),
    ("open", errno.EMFILE),
    ("open", errno.ENFILE),
    ("open", errno.EIO),
    ("pidfd", errno.EMFILE),
    ("socket", errno.EMFILE),
    ("mmap", errno.ENOMEM),
    ("truncate", errno.EIO),
    ("fallocate", errno.ENOSPC),
    ("write", errno.ENOSPC),
    ("write", errno.EIO),
    ("fsync", errno.EIO),
    ("dup", errno.EMFILE),
    ("rename", errno.ENOSPC),
    ("sendmsg", errno.ENOMEM),
    ("fork", errno.EAGAIN),
]
IDS = [f"{kind}-{errno.errorcode[number]}" for kind, number in CASES]
NTH = 12
"""Single calls of a registration that fail in turn."""


class Faults:
    """What the preloaded library is told."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(ORDERS.size))
        self._file = path.open("r+b")
        self._map = mmap.mmap(self._file.fileno(), ORDERS.size)

    def begin(self, kind: str, error: int, *, skip: int = 0, calls: int = -1) -> None:
        self._map[:] = ORDERS.pack(kind.encode(), error, skip, calls, 0)

    def end(self) -> int:
        """Let calls succeed again; return how many have failed."""
        count = int(ORDERS.unpack(self._map[:])[4])
        self._map[:] = bytes(ORDERS.size)
        return count

    def close(self) -> None:
        self._map.close()
        self._file.close()


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    made = Faults(tmp_path / "faults")
    yield made
    made.close()


@pytest.fixture
def node(daemon: Callable[..., Any], compile_c: CompileC, tmp_path: Path, faults: Faults, tenant: str) -> Any:
    library = compile_c(ROOT / "tests/c/faults/fail.c", "-shared", "-fPIC", "-ldl", name="fail")
    yield daemon(log_level="info", env={"LD_PRELOAD": str(library), "TEST_FAULTS": str(tmp_path / "faults")})
    remove_segments(tenant)


def call(node: Any, method: str, target: str, body: object = None) -> tuple[int, str]:
    """Return status and reason; 0: no answer at all."""
    try:
        status, headers, said = ask(node.socket, method, target, body)
    except (OSError, http.client.HTTPException, json.JSONDecodeError):
        return 0, ""
    assert status < 400 or said["error"] == headers["gpulimit-error"]
    return status, headers.get("gpulimit-error", "")


def scrape(node: Any) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", node.metrics_port, timeout=5)
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/metrics")
        connection.getresponse().read()
    connection.close()


def check_log(node: Any) -> None:
    text = node.log.read_text()
    assert "Traceback" not in text, text
    assert len(text) < 20_000, text
    assert "has gone" not in text, text


@pytest.mark.parametrize(("kind", "error"), CASES, ids=IDS)
def test_a_shortage_is_said_and_passes(node, client, faults, tenant, kind, error) -> None:
    good = client(f"{tenant}-good")
    faults.begin(kind, error)
    end = time.monotonic() + 1.2
    number = 0
    while time.monotonic() < end:
        number += 1
        status, reason = call(node, "PUT", f"/v1/tenants/{tenant}-q{number}/quota", {"memory": "1GiB"})
        assert status in (0, 200, 500, 503, 507), (status, reason)
        assert "gone" not in reason
        assert call(node, "GET", "/v1/state")[0] in (0, 200, 500, 503)
        scrape(node)
        time.sleep(0.05)
    new = client(f"{tenant}-new", is_refused=True) if kind != "accept" else None
    if new is not None and new.answer["status"] != 200:
        assert new.answer["status"] >= 500, new.answer  # passing: such a process asks again
        assert "gone" not in (new.answer["error"] or ""), new.answer
    faults.end()
    assert node.process.poll() is None
    eventually(lambda: call(node, "GET", "/v1/state")[0] == 200)
    eventually(lambda: client(f"{tenant}-later", is_refused=True).answer["status"] == 200)
    first = good.tell(order="look")["heartbeat_ns"]
    eventually(lambda: good.tell(order="look")["heartbeat_ns"] > first)
    check_log(node)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("open", errno.EMFILE), ("mmap", errno.ENOMEM), ("truncate", errno.ENOSPC), ("write", errno.EIO)],
)
def test_whichever_call_of_a_registration_fails_nothing_leaks(
    node, client, faults, tenant, kind, error
) -> None:
    client(f"{tenant}-good")
    before = len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))
    for skip in range(NTH):
        faults.begin(kind, error, skip=skip, calls=1)
        one = client(f"{tenant}-{skip}", is_refused=True)
        faults.end()
        assert one.answer["status"] == 200 or one.answer["status"] >= 500, (skip, one.answer)
        one.kill()
    check_log(node)
    open_now = len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))
    assert open_now <= before + 5 * NTH + 4  # the tenants' files are kept for a while
