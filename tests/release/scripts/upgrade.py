# SPDX-License-Identifier: Apache-2.0
"""Runs in a minimal Debian with the old package: tenants, an upgrade under them, and what became of them.

Prints one JSON object.  Usage: upgrade.py NUMBER-OF-TENANTS; /mnt has new.deb and the program `tenant`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COUNT = int(sys.argv[1])
QUOTA = 64 << 20
ENV = dict(
    os.environ,
    GPULIMIT_SIM_STATE="/dev/shm/sim",
    GPULIMIT_SIM_PROFILE="small",
    GPULIMIT_SIM_SET="memory=16GiB",
)


def out(*argv: str) -> str:
    return subprocess.run(argv, env=ENV, check=True, capture_output=True, text=True).stdout


def until(check: Callable[[], Any], what: str, seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            sys.exit(f"never: {what}")
        time.sleep(0.2)


def status() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out("gpulimit", "status", "--json", "--over", "0"))
    return found


def start_daemon() -> subprocess.Popen[bytes]:
    argv = ["gpulimit", "daemon", "--config", "/etc/gpulimit.toml", "--sim", "--metrics-addr", ""]
    with Path("/tmp/daemon.log").open("ab") as log:
        return subprocess.Popen(argv, env=ENV, stdout=log, stderr=log)


def library() -> str:
    return out("gpulimit", "lib").strip()


def mapped(pid: int) -> str:
    """Return device, inode and name of the library that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return next((" ".join(line.split()[3:]) for line in lines if "/libgpulimit" in line), "")


def start_tenant(number: int) -> subprocess.Popen[str]:
    env = ENV | {
        "LD_PRELOAD": LIBRARY,
        "LD_LIBRARY_PATH": str(Path(LIBRARY).parent / "sim"),
        "GPULIMIT_TENANT": f"t{number}",
        "GPULIMIT_MEMORY": str(QUOTA),
    }
    return subprocess.Popen(["/mnt/tenant", str(number)], env=env, stdout=subprocess.PIPE, text=True)


def by_name(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["tenant"]: row for row in state["tenants"]}


def registered(count: int) -> dict[str, dict[str, Any]] | None:
    """Return the tenants once the daemon has that many with a process."""
    state = status()
    if not state["daemon"]:
        return None
    rows = [row for row in state["node"]["tenants"] if row.get("workers")]
    return by_name(state) if len(rows) == count else None


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what an upgrade must not change and did."""
    kept = ("memory_used_bytes", "memory_limit_bytes", "source")
    return [
        f"{name} {key}: {before[name].get(key)} -> {after.get(name, {}).get(key)}"
        for name in before
        for key in kept
        if before[name].get(key) != after.get(name, {}).get(key)
    ]


LIBRARY = library()
daemon = start_daemon()
until(lambda: status()["daemon"], "the daemon is there")
tenants = [start_tenant(number) for number in range(COUNT)]
for process in tenants:
    assert process.stdout and process.stdout.readline() == "ready\n"
until(lambda: registered(COUNT), "all tenants are registered")
out("gpulimit", "quota", "set", "t0", "--memory", "48MiB")
out("gpulimit", "tenant", "suspend", "t1")
before = until(lambda: registered(COUNT), "all tenants are shown")
old = mapped(tenants[0].pid)

SHELF = Path("/var/lib/gpulimit/lib")
out("gpulimit", "lib", "--install", str(SHELF))
shelf_before = sorted(p.name for p in SHELF.iterdir())
subprocess.run(["dpkg", "-i", "/mnt/new.deb"], check=True, stdout=subprocess.DEVNULL)
daemon.send_signal(signal.SIGTERM)
daemon.wait(20)
daemon = start_daemon()
after = until(lambda: registered(COUNT), "all tenants are back")
lost = differing(before, after)
state = next(row for row in status()["node"]["tenants"] if row["tenant"] == "t1")
if not state.get("suspended"):
    lost.append(f"t1 is no longer suspended: {state}")
out("gpulimit", "tenant", "resume", "t1")
time.sleep(2)

still = sum("(deleted)" in mapped(p.pid) for p in tenants)
fresh = start_tenant(COUNT)
assert fresh.stdout and fresh.stdout.readline() == "ready\n"
new = mapped(fresh.pid)
for process in [*tenants, fresh]:
    process.send_signal(signal.SIGTERM)
said = [p.communicate(timeout=30)[0].strip() for p in tenants]
fresh.communicate(timeout=30)
daemon.terminate()
print(
    json.dumps(
        {
            "tenants": COUNT,
            "ended_well": sum(p.returncode == 0 for p in tenants),
            "said": sorted(set(said))[:5],
            "lost": lost,
            "old_library": old,
            "old_library_still_mapped": still,
            "new_process_maps": new,
            "new_process_ended": fresh.returncode,
            "shelf_before": shelf_before,
            "shelf_after": sorted(p.name for p in SHELF.iterdir()),
        }
    )
)
