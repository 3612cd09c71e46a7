# SPDX-License-Identifier: Apache-2.0
"""A client of the daemon: registers, claims a slot with a record lock as the library does, and obeys orders.

`client.py SOCKET [UID]` reads one JSON object a line and answers each with one.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import mmap
import os
import random
import socket
import sys
import uuid
from typing import Any

from limiter._native import ffi, lib


class Client:
    def __init__(self, path: str) -> None:
        self.path = path
        self.worker = ""
        self.after = 0
        self.usage: Any = None
        self.policy: Any = None
        self.slot = -1
        self.fd = -1

    def ask(self, method: str, target: str, body: object = None) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(30)
        connection.sock.connect(self.path)
        connection.request(method, target, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, text

    def register(self, tenant: str, environment: dict[str, str], **more: Any) -> dict[str, Any]:
        said = {
            "version": lib.GL_LAYOUT_VERSION,
            "pid": os.getpid(),
            "start_ticks": 0,
            "name": "client",
            "tenant": tenant,
        }
        status, headers, text = self.ask("POST", "/v1/workers", {**said, "environment": environment, **more})
        if status != 200:
            return {"status": status, "error": headers.get("gpulimit-error"), "body": text}
        self.worker = headers["gpulimit-worker"]
        self.map(headers["gpulimit-usage"], headers["gpulimit-policy"])
        names = ("worker", "host-pid", "tenant", "usage", "policy", "source")
        return {"status": 200, "pid": os.getpid(), **{n: headers[f"gpulimit-{n}"] for n in names}}

    def map(self, usage: str, policy: str) -> None:
        if self.usage is None:
            self.fd = os.open(f"/dev/shm/{usage}", os.O_RDWR)
            whole = mmap.mmap(self.fd, ffi.sizeof("struct gl_usage"))
            self.usage = ffi.from_buffer("struct gl_usage *", whole, require_writable=True)
            self.claim()
        fd = os.open(f"/dev/shm/{policy}", os.O_RDONLY)
        read_only = mmap.mmap(fd, ffi.sizeof("struct gl_policy"), prot=mmap.PROT_READ)
        self.policy = ffi.from_buffer("struct gl_policy *", read_only)
        os.close(fd)

    def claim(self) -> None:
        base, size = ffi.offsetof("struct gl_usage", "slot"), ffi.sizeof("struct gl_slot")
        for slot in range(lib.GL_MAX_SLOTS):
            try:
                fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, base + slot * size, os.SEEK_SET)
            except OSError:
                continue
            if self.usage.slot[slot].generation & 1:
                continue
            header = self.usage.header
            header.slots_used = max(header.slots_used, slot + 1)
            self.usage.slot[slot].pid = os.getpid()
            self.usage.slot[slot].generation += 1
            self.slot = slot
            return

    def device(self, gpu: str, card_bytes: int) -> dict[str, Any]:
        """Show up on a GPU."""
        for entry in range(lib.GL_MAX_DEVICES):
            device = self.usage.device[entry]
            if not device.ready:
                device.uuid = uuid.UUID(gpu.removeprefix("GPU-")).bytes
                device.card_bytes = device.memory_limit_bytes = card_bytes
                device.compute_limit_percent = 100
                device.ready = 1
            if bytes(device.uuid) == uuid.UUID(gpu.removeprefix("GPU-")).bytes:
                return {"entry": entry}
        return {"entry": -1}

    def reserve(self, size: int, limit: int) -> dict[str, Any]:
        return {"result": lib.gl_ledger_add(self.usage, 0, self.slot, self.slot, size, limit)}

    def refuse(self) -> dict[str, Any]:
        """Count an allocation that was refused."""
        self.usage.device[0].refused += 1
        return {}

    def spend(self, ns: int, outstanding_ns: int = 0, waiting: int = 0) -> dict[str, Any]:
        """Use GPU time, and ring."""
        self.usage.device[0].spent_ns += ns
        account = self.usage.slot[self.slot].account[0]
        account.outstanding_ns, account.waiting = outstanding_ns, waiting
        lib.gl_bell_ring(ffi.addressof(self.usage.header, "doorbell"))
        return {}

    def lie(self, spent_ns: int, outstanding_ns: int, waiting: int) -> dict[str, Any]:
        """Write figures that cannot be, and ring."""
        self.usage.device[0].spent_ns = spent_ns
        return self.spend(0, outstanding_ns, waiting)

    def wait_for_others(self, devices: int, released: int = 0) -> dict[str, Any]:
        """Note the devices, a bit each, on which processes of the tenant wait for each other."""
        self.usage.gang.devices, self.usage.gang.released = devices, released
        lib.gl_bell_ring(ffi.addressof(self.usage.header, "doorbell"))
        return {}

    def look(self) -> dict[str, Any]:
        policy = self.policy
        return {
            "heartbeat_ns": policy.heartbeat_ns,
            "daemon_start_ns": policy.daemon_start_ns,
            "commands": policy.commands,
            "gang": policy.gang,
            "spent_ns": self.usage.device[0].spent_ns,
            "devices": [
                {
                    "uuid": f"GPU-{uuid.UUID(bytes=bytes(d.uuid))}",
                    **{n: getattr(d, n) for n, _ in ffi.typeof(d).fields if n not in ("uuid", "reserved")},
                }
                for d in policy.device
                if d.ready == 1
            ],
        }

    def commands(self, wait: int = 0, after: int | None = None) -> dict[str, Any]:
        after = self.after if after is None else after
        target = f"/v1/workers/{self.worker}/commands?after={after}&wait={wait}"
        status, headers, text = self.ask("GET", target)
        return {"status": status, "command": headers.get("gpulimit-command"), "body": text}

    def result(self, number: int, ok: bool) -> dict[str, Any]:
        body = {"number": number, "ok": ok, "message": "so"}
        return {"status": self.ask("POST", f"/v1/workers/{self.worker}/results", body)[0]}

    def raw(self, method: str, target: str, body: object = None) -> dict[str, Any]:
        status, _, text = self.ask(method, target, body)
        return {"status": status, "body": text}

    def truncate(self, size: int) -> dict[str, Any]:
        os.ftruncate(self.fd, size)
        return {}

    def scribble(self, seed: int) -> dict[str, Any]:
        """Overwrite the books with nonsense, header apart."""
        made = random.Random(seed)  # noqa: S311
        size = ffi.sizeof("struct gl_usage") - 128
        os.pwrite(self.fd, made.randbytes(size), 128)
        return {}

    def spoil(self) -> dict[str, Any]:
        self.usage.header.version = 99
        lib.gl_bell_ring(ffi.addressof(self.usage.header, "doorbell"))
        return {}

    def ring(self, times: int) -> dict[str, Any]:
        for _ in range(times):
            lib.gl_bell_ring(ffi.addressof(self.usage.header, "doorbell"))
        return {}


def main() -> None:
    if sys.argv[2:] and sys.argv[2]:
        uid = int(sys.argv[2])
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    client = Client(sys.argv[1])
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(client, order.pop("order"))(**order)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
