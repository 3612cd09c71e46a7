# SPDX-License-Identifier: Apache-2.0
"""bench/idle.py, rehearsed with few workers: what it prints is simulated, and looked at for its shape."""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path

import pytest

from bench.idle import Crowd
from tests.conftest import ROOT, clean_environ
from tests.daemon.conftest import eventually


def test_it_measures_alone_and_with_workers_that_wait(built, run_process, tmp_path: Path) -> None:
    out = tmp_path / "idle.json"
    options = [
        "--sim",
        "--workers",
        "30",
        "--tenants",
        "3",
        "--spread",
        "0",
        "--seconds",
        "0.5",
        "--out",
        out,
    ]
    argv = [sys.executable, ROOT / "bench" / "idle.py", "--library", built.library, *options]
    done = run_process(argv, env=clean_environ(), timeout=60, expect=0)
    rest, waiting = json.loads(out.read_text())["results"]
    assert (rest["workers"], waiting["workers"]) == (0, 30)
    assert 0 < waiting["cores"] < 1
    assert waiting["resident_mib"] > 10
    assert done.stdout.splitlines()[1].startswith("   30 workers wait: ")


REFUSAL = b"HTTP/1.1 422 Unprocessable Entity\r\nGpulimit-Error: speaks another version\r\n\r\n"
TAKEN = b"HTTP/1.1 200 OK\r\nGpulimit-Worker: w-1\r\n\r\n"
GONE = b"HTTP/1.1 404 Not Found\r\n\r\n"


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([REFUSAL], ("0 of 1 workers registered", "registration of {", "422", "speaks another version")),
        ([b""], ("0 of 1 workers registered", "registration of {", "no answer")),
        ([TAKEN, GONE], ("1 of 1 workers registered", "question for commands", "404 Not Found")),
    ],
    ids=["refused", "hung-up", "forgotten"],
)
def test_what_the_daemon_answers_to_a_worker_that_it_does_not_serve_is_told(
    built, tmp_path: Path, answers: list[bytes], words: tuple[str, ...]
) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        daemon = threading.Thread(target=answer_all, args=(listener, answers))
        daemon.start()
        crowd = Crowd(path, workers=1, tenants=1, spread_s=0)
        try:
            with pytest.raises(SystemExit) as caught:
                watch(crowd)
        finally:
            crowd.stop()
            daemon.join(timeout=30)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def watch(crowd: Crowd) -> None:
    """Look after workers until one is in trouble."""
    crowd.wait()
    eventually(crowd.check)


def answer_all(listener: socket.socket, answers: list[bytes]) -> None:
    """Give one answer to each connection, after its question."""
    listener.settimeout(30)
    for answer in answers:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)
