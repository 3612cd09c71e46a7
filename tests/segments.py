# SPDX-License-Identifier: Apache-2.0
"""Usage segments made by hand, for tests of what reads them.

Run as a program, it makes one from a JSON description and lives on as the process in slot 0, holding the
slot's lock, until it is killed: `python tests/segments.py PATH '{"devices": [...], "slots": [...]}'`.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from limiter._native import ffi, lib


def craft(description: dict[str, Any]) -> bytearray:
    """Return the bytes of a segment; `devices` and `slots` give fields by name, `slots` with `accounts`."""
    raw = bytearray(ffi.sizeof("struct gl_usage"))
    usage = ffi.from_buffer("struct gl_usage *", raw)
    header = usage.header
    header.magic, header.version, header.size = lib.GL_USAGE_MAGIC, lib.GL_LAYOUT_VERSION, len(raw)
    header.created_ns = description.get("created_ns", 1)
    header.slots_used = len(description.get("slots", ()))
    for entry, fields in enumerate(description.get("devices", ())):
        device = usage.device[entry]
        device.uuid = bytes([entry + 1] * 16)
        device.card_bytes = device.memory_limit_bytes = 80 << 30
        device.compute_limit_percent = 100
        for name, value in fields.items():
            if name != "used_bytes":
                setattr(device, name, value)
        device.ready = 1
    for index, fields in enumerate(description.get("slots", ())):
        fill_slot(usage, index, fields)
    header.ready = 1
    return raw


def fill_slot(usage: Any, index: int, fields: dict[str, Any]) -> None:
    slot = usage.slot[index]
    slot.generation = 1
    slot.pid = fields.get("pid", 1000 + index)
    slot.start_ticks = fields.get("start_ticks", 7)
    slot.name = fields.get("name", "python").encode()
    for entry, account in enumerate(fields.get("accounts", ())):
        for kind, count in enumerate(account.get("launches", ())):
            slot.account[entry].launches[kind] = count
        slot.account[entry].spent_ns = account.get("spent_ns", 0)
        used = account.get("used_bytes", 0)
        if used:
            assert lib.gl_ledger_add(usage, entry, index, index, used, (1 << 64) - 1) == 0


def main(path: Path, description: dict[str, Any]) -> None:
    path.write_bytes(craft(description))
    with path.open("r+b") as file:
        offset = ffi.offsetof("struct gl_usage", "slot")
        fcntl.lockf(file, fcntl.LOCK_EX, 1, offset, os.SEEK_SET)
        print("ready", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
