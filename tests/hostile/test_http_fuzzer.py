# SPDX-License-Identifier: Apache-2.0
"""Nearly right requests to a real daemon, for about a minute, or GPULIMIT_FUZZ_SECONDS."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from limiter._native import lib

from tests.daemon.conftest import eventually
from tests.hostile import http_fuzzer

SECONDS = int(os.environ.get("GPULIMIT_FUZZ_SECONDS", "45"))
SEED = int(os.environ.get("GPULIMIT_TEST_SEED", "1"))
FILES_OF_TENANT = 8
MIN_REQUESTS_PER_S = 5
"""On the slowest machine; fewer means that the daemon does not answer."""


def check(node: Any, descriptors: int) -> None:
    """The daemon is as it was."""
    assert node.process.poll() is None
    assert node.state()["gpus"]
    names = [tenant["tenant"] for tenant in node.state()["tenants"]]  # this test has registered itself
    most = descriptors + FILES_OF_TENANT * len(names) + 3
    eventually(lambda: open_now(node) <= most, within_s=20)
    for name in names:
        for kind in "up":
            Path(f"/dev/shm/gpulimit.{kind}.{name}").unlink(missing_ok=True)
    text = node.log.read_text()
    assert "Traceback" not in text, text[:4000]
    assert len(text) < 200_000


def open_now(node: Any) -> int:
    return len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))


@pytest.mark.parametrize("path", sorted(http_fuzzer.CORPUS.glob("*.http")), ids=lambda path: path.stem)
def test_what_once_found_something_finds_nothing(daemon, path) -> None:
    node = daemon(log_level="info")
    before = open_now(node)
    answer = http_fuzzer.send(node.socket, path.read_bytes())
    assert answer[9:12] != b"500", answer
    check(node, before)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
def test_nearly_right_requests_find_nothing(daemon, tenant) -> None:
    node = daemon(log_level="info", linger="0s", request_timeout="1s", state_dir="")
    before = open_now(node)
    statuses, found = http_fuzzer.run(
        node.socket, seed=SEED, seconds=SECONDS, version=int(lib.GL_LAYOUT_VERSION)
    )
    print(f"seed {SEED}: {sum(statuses.values())} requests, {dict(statuses)}")
    assert not found, f"seed {SEED}; kept in {http_fuzzer.CORPUS}: {found[:3]}"
    assert sum(statuses.values()) >= SECONDS * MIN_REQUESTS_PER_S
    assert {"422", "404", "400"} <= set(statuses)
    check(node, before)
