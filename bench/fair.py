# SPDX-License-Identifier: Apache-2.0
"""Measures how a card is divided between tenants: with the daemon, with plain hardware slicing, and alone.

    python bench/fair.py --library build/shim/libgpulimit.so --seconds 6 --out fair.json

The first part (fair_shares.py) runs each scenario's tenants together. For their free rates, they also run alone, before
and after or by turns. Each scenario runs once without the library and once under the daemon. The second part
(fair_transitions.py) measures how long changes take: lending time and returning it, a new quota, a killed tenant, a
killed daemon. It also measures what the daemon costs. Needs a real card and PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fair_transitions
import fair_shares
from child import Child

PART_TERMS = {"weight": "100", "priority": "normal"}


class Side:
    """One way of sharing, plain or with the daemon: its processes, and the quotas of its tenants."""

    def __init__(self, label: str, library: Path, folder: Path) -> None:
        self.label = label
        self.prefix = f"fair-{os.getpid()}"
        self.has_daemon = label == "daemon"
        self.library = library
        self.folder = folder
        self.children: dict[tuple[int, int], Child] = {}
        self.daemon: subprocess.Popen[bytes] | None = None

    def start_daemon(self) -> None:
        """Start the daemon and wait until it answers."""
        from limiter import daemon_client

        if not self.has_daemon:
            return
        os.environ["GPULIMIT_SOCKET"] = socket = f"{self.folder}/hypervisor.sock"
        options = {"socket": socket, "state-dir": str(self.folder), "state-segment": f"gpulimit.s.{self.prefix}-node", "metrics-addr": ""}
        command = [sys.executable, "-m", "limiter", "daemon", *(word for name, value in options.items() for word in (f"--{name}", value))]
        with (self.folder / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while daemon_client.state() is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the daemon does not answer:\n{(self.folder / 'daemon.log').read_text()[-3000:]}")
            time.sleep(0.01)

    def name(self, tenant: int) -> str:
        """Return the daemon's name for a tenant."""
        return f"{self.prefix}-{tenant}"

    def env(self, tenant: int) -> dict[str, str]:
        """Return the environment of a tenant's processes. Empty on the plain side."""
        if not self.has_daemon:
            return {}
        return {
            "LD_PRELOAD": str(self.library.resolve()),
            "GPULIMIT_SOCKET": os.environ["GPULIMIT_SOCKET"],
            "GPULIMIT_TENANT": self.name(tenant),
        }

    def child(self, tenant: int, copy: int = 0) -> Child:
        """Return process number `copy` of a tenant. It is started at its first use."""
        if (tenant, copy) not in self.children:
            self.children[tenant, copy] = Child(self.env(tenant))
        return self.children[tenant, copy]

    def set_quota(self, tenant: int, **terms: str) -> None:
        """Set a tenant's whole quota. Parts that are not given have their default."""
        from limiter import daemon_client

        if self.has_daemon:
            daemon_client.ask("PUT", f"/v1/tenants/{self.name(tenant)}/quota", PART_TERMS | terms)

    def stop(self) -> None:
        """End all processes and remove their shared memory."""
        for child in self.children.values():
            child.stop()
        if self.daemon:
            self.daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.daemon.wait(timeout=20)
        for segment in Path("/dev/shm").glob(f"gpulimit.*.{self.prefix}-*"):
            segment.unlink(missing_ok=True)


def main() -> None:
    """Run every scenario on every side and print the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=6.0)
    scenarios = [*fair_shares.SCENARIOS, *fair_transitions.SCENARIOS]
    parser.add_argument("--scenarios", default="all", help=f"comma-separated, of {', '.join(scenarios)}")
    parser.add_argument("--sides", default="plain,daemon")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    chosen = scenarios if options.scenarios == "all" else options.scenarios.split(",")
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for label in options.sides.split(","):
            side = Side(label, options.library, Path(folder))
            try:
                side.start_daemon()
                for name in chosen:
                    results += run(side, name, options.seconds)
            finally:
                side.stop()
                if options.out:
                    options.out.write_text(json.dumps(results, indent=1))
    print("\n".join(row for found in results for row in found["rows"]))


def run(side: Side, name: str, seconds: float) -> list[dict[str, Any]]:
    """Run one scenario. Show its rows at once, so that an interrupted run still has results."""
    if name in fair_shares.SCENARIOS:
        found = fair_shares.SCENARIOS[name](side, seconds)
    elif side.has_daemon:
        found = fair_transitions.SCENARIOS[name](side)
    else:
        return []
    found = {"scenario": name, "side": side.label} | found
    found["rows"] = [f"{name:22} {side.label:6} {row}" for row in found["rows"]]
    print("\n".join(found["rows"]), file=sys.stderr, flush=True)
    return [found]


if __name__ == "__main__":
    main()
