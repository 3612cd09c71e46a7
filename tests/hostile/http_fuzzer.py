# SPDX-License-Identifier: Apache-2.0
"""Makes HTTP requests that are nearly right, from a seed, and sends them to a daemon.

`corpus/` holds raw requests: those that once found something, and one of each kind. New findings are written
there, to be committed with their fix.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
ANSWER_S = 0.05
"""Time that an answer is waited for: most half requests get none."""
FAULT = 500
METHODS = ("GET", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "get", "\0", "G" * 40)
SEGMENTS = ("a", "%2e%2e", "..", "%00", "%0d%0aA:b", "A" * 300, "%ff%fe", "%C3%28", "*", "{tenant}", "", "é")
NUMBERS = ("0", "-1", "9" * 25, "x", "1&after=2", "%D9%A3", "1e3", "", "nan")
KEYS = ("version", "pid", "start_ticks", "name", "tenant", "environment", "view", "files", "number", "ok")
KEYS += ("message", "memory", "compute", "request", "weight", "priority", "memory_wait", "gang", "x")
KEYS += ("__class__",)
TEXTS = (
    "",
    "a\nb\r\nX: y",
    "\0",
    "\u202e\x1b[31m",
    "A" * 300,
    "é" * 256,
    "4GiB",
    "*=50%",
    "../../x",
    "pod-x",
)
TEXTS += ("\ud800", "high", "0=1GiB,1=2GiB", "1=1," * 2000, "٣", "∞", "GPU-\u20ac=4")
VALUES = ("null", "true", "-1", "1e999", "NaN", "-Infinity", "1" * 400, "1" * 5000, "[]", "{}", "0.5", "2")
VALUES += tuple("[" * depth + "]" * depth for depth in (200, 480, 960, 5000))
HEADERS = (
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: chunked, gzip",
    "Content-Encoding: gzip",
    "Content-Encoding: br",
    "Expect: 100-continue",
    "Connection: close",
    "Connection: Upgrade\r\nUpgrade: websocket",
    "Host: a\r\nHost: b",
    "X: " + "y" * 9000,
    "X\0: y",
    " folded: y",
    "Authorization: Bearer x",
    "Content-Type: application/json; charset=utf-99",
    "Range: bytes=0-1",
    "Cookie: a=b; c",
    "\xff: \xfe",
)
QUOTA_VARIABLES = ("MEMORY", "COMPUTE", "REQUEST", "WEIGHT", "PRIORITY", "TENANT", "MEMORY_WAIT", "GANG")


class Requests:
    """An endless row of requests, the same for the same seed."""

    def __init__(self, seed: int, version: int) -> None:
        self._made = random.Random(seed)  # noqa: S311
        self._version = version
        self._corpus = [path.read_bytes() for path in sorted(CORPUS.glob("*.http"))]

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield self._mutated(self._one())

    def _one(self) -> bytes:
        if self._corpus and self._made.random() < 0.2:
            return self._made.choice(self._corpus)
        body = (
            self._body() if self._made.random() < 0.8 else self._made.randbytes(self._made.choice((0, 1, 50)))
        )
        lines = [f"{self._made.choice(METHODS)} {self._target()} HTTP/1.1", "Host: x"]
        lines += self._made.sample(HEADERS, self._made.choice((0, 0, 0, 1, 2, 3)))
        text = "\r\n".join(lines)
        if "Content-Encoding: gzip" in text and self._made.random() < 0.5:
            body = gzip.compress(self._made.choice((body, bytes(1_000_000))))
        if "Transfer-Encoding" in text:
            end = self._made.choice(
                (b"0\r\n\r\n", b"", b"-1\r\n", b"ffffffffffffffff\r\n", b"0\r\nX: y\r\n\r\n")
            )
            body = b"%x\r\n%s\r\n" % (len(body), body) + end
        elif "Content-Length" not in text:
            text += f"\r\nContent-Length: {len(body)}"
        return text.encode("latin1", "replace") + b"\r\n\r\n" + body

    def _target(self) -> str:
        one, number = self._made.choice(SEGMENTS), self._made.choice(NUMBERS)
        return self._made.choice(
            (
                "/v1/state",
                "/v1/workers",
                "/v1/workers",
                f"/v1/workers/{one}/commands?after={number}&wait=0",
                f"/v1/workers/{one}/results",
                f"/v1/tenants/{one}/quota",
                f"/v1/tenants/{one}/suspend",
                f"/{one}",
                "*",
                "http://x/v1/state",
                "/v1/state?" + "a" * 9000,
            )
        )

    def _body(self) -> bytes:
        pairs = {key: self._value() for key in self._made.sample(KEYS, self._made.randint(0, 8))}
        if self._made.random() < 0.7:
            pairs["version"] = str(self._version)
        if self._made.random() < 0.6:
            chosen = self._made.sample(QUOTA_VARIABLES, self._made.randint(0, 5))
            said = {f"GPULIMIT_{name}": self._made.choice(TEXTS) for name in chosen}
            pairs["environment"] = json.dumps(said)
        text = ",".join(f"{json.dumps(key)}:{value}" for key, value in pairs.items())
        return f"{{{text}}}".encode("utf-8", "surrogatepass")

    def _value(self) -> str:
        return self._made.choice((*VALUES, json.dumps(self._made.choice(TEXTS))))

    def _mutated(self, raw: bytes) -> bytes:
        if not raw or self._made.random() > 0.2:
            return raw
        changed = bytearray(raw)
        for _ in range(self._made.randint(1, 6)):
            at = self._made.randrange(len(changed))
            kind = self._made.randrange(3)
            if kind == 0:
                changed[at] = self._made.randrange(256)
            elif kind == 1:
                del changed[at : at + self._made.randrange(8)]
            else:
                changed[at:at] = changed[at : at + self._made.randrange(16)]
            if not changed:
                return b"\0"
        return bytes(changed)


def send(path: str, raw: bytes) -> bytes:
    """Send a request; return the beginning of what is answered soon."""
    with socket.socket(socket.AF_UNIX) as one, contextlib.suppress(OSError):
        one.settimeout(5)
        one.connect(path)
        with contextlib.suppress(BrokenPipeError):
            one.sendall(raw)
        one.settimeout(ANSWER_S)
        return one.recv(4096)
    return b""


def run(path: str, *, seed: int, seconds: float, version: int) -> tuple[Counter[str], list[bytes]]:
    """Return how often each status was answered, and the requests that found a fault of the daemon's."""
    statuses: Counter[str] = Counter()
    found: dict[bytes, bytes] = {}
    end = time.monotonic() + seconds
    for raw in Requests(seed, version):
        if time.monotonic() > end:
            break
        answer = send(path, raw)
        status = answer[9:12].decode("latin1") if answer.startswith(b"HTTP/1.") else "none"
        statuses[status] += 1
        if status.isdecimal() and int(status) == FAULT:
            found.setdefault(answer.partition(b"\r\n\r\n")[2][:60], raw)
    for raw in found.values():
        (CORPUS / f"found-{hashlib.sha256(raw).hexdigest()[:12]}.http").write_bytes(raw)
    return statuses, list(found.values())
