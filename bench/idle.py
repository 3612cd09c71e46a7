# SPDX-License-Identifier: Apache-2.0
"""What the daemon costs while nobody works: CPU time and memory, alone and with many registered processes that wait.

    python bench/idle.py --out idle.json            # on this machine's cards
    python bench/idle.py --sim --workers 200        # on simulated ones

Each worker is a process of its own that registers as the library does and then keeps asking for commands, each
question on a new connection and answered after 25 s if there is nothing to say. They register over a whole such period,
as programs of a real node do, so that their questions are spread over it.
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

POLL_S = 25
"""How long the library lets a question wait."""
READY_S = 60
NAME = f"idle-{os.getpid()}"
"""Begins the names of what is this run's own in /dev/shm."""

CROWD = """
import json, os, socket, sys, time
path, name, count, tenants, spread_s, poll_s = *sys.argv[1:3], *map(int, sys.argv[3:7])
head = "Host: gpulimit\\r\\nConnection: close\\r\\n"

def ask(text):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
        one.sendall(text.encode())
        answer = b""
        while piece := one.recv(4096):
            answer += piece
    return answer.decode()

def work(number):
    body = json.dumps({"version": 1, "pid": os.getpid(), "tenant": f"{name}-{number % tenants}", "name": "idle"})
    length = f"Content-Length: {len(body)}"
    answer = ask(f"POST /v1/workers HTTP/1.1\\r\\n{head}{length}\\r\\n\\r\\n{body}")
    worker = [line for line in answer.splitlines() if line.startswith("Gpulimit-Worker")][0].split()[1]
    os.write(1, b".")
    while True:
        answer = ask(f"GET /v1/workers/{worker}/commands?after=0&wait={poll_s} HTTP/1.1\\r\\n{head}\\r\\n")
        assert not answer or " 204 " in answer.splitlines()[0], answer

begin = time.monotonic()
for number in range(count):
    time.sleep(max(0.0, begin + spread_s * number / count - time.monotonic()))
    if os.fork() == 0:
        try:
            work(number)
        except (ConnectionError, FileNotFoundError):
            os._exit(0)  # the daemon has gone: that was all
for _ in range(count):
    os.wait()
"""


class Daemon:
    """A daemon of its own, beside whatever runs."""

    def __init__(self, folder: Path, *, is_simulated: bool) -> None:
        self.socket = str(folder / "hypervisor.sock")
        os.environ |= {"GPULIMIT_SOCKET": self.socket, "GPULIMIT_SIM_STATE": str(folder / "sim")}
        command = [
            sys.executable,
            "-m",
            "limiter",
            "daemon",
            "--socket",
            self.socket,
            "--state-dir",
            str(folder),
        ]
        command += ["--metrics-addr", "", "--state-segment", f"gpulimit.{NAME}"]
        with (folder / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(command + ["--sim"] * is_simulated, stdout=log, stderr=log)

    def wait(self) -> None:
        """Return when it can do its work."""
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("idle.py: the daemon does not start")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        from limiter import node

        state = node.state()
        return state is not None and not state["daemon"]["not_ready"]

    @property
    def workers(self) -> int:
        """Processes that are registered."""
        from limiter import node

        state = node.state() or {"tenants": []}
        return sum(len(tenant["workers"]) for tenant in state["tenants"])

    @property
    def cpu_s(self) -> float:
        """CPU time of all its threads and of its NVML process, so far."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return sum(cpu_seconds(int(pid)) for pid in [str(self.process.pid), *children])

    @property
    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / (1 << 20)

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=20)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process's living threads so far."""
    spent_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            spent_ns += int((thread / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


def measure(daemon: Daemon, seconds: float) -> dict[str, float]:
    """Let time pass; return what part of a core it took, and the memory that it holds."""
    before, begin = daemon.cpu_s, time.monotonic()
    time.sleep(seconds)
    return {
        "cores": (daemon.cpu_s - before) / (time.monotonic() - begin),
        "resident_mib": daemon.resident_mib,
    }


def start_crowd(daemon: Daemon, workers: int, tenants: int, spread_s: int) -> subprocess.Popen[bytes]:
    """Start the workers; return when all are registered."""
    numbers = [str(number) for number in (workers, tenants, spread_s, POLL_S)]
    crowd = subprocess.Popen(
        [sys.executable, "-c", CROWD, daemon.socket, NAME, *numbers], stdout=subprocess.PIPE
    )
    assert crowd.stdout is not None
    registered = 0
    while registered < workers:
        signs = os.read(crowd.stdout.fileno(), 4096)
        if not signs:
            raise SystemExit(f"idle.py: only {registered} of {workers} workers registered")
        registered += len(signs)
    return crowd


def rows_of(results: list[dict[str, Any]]) -> list[str]:
    return [
        f"{found['workers']:5} workers wait: {100 * found['cores']:.2f} % of a core, {found['resident_mib']:.0f} MiB resident"
        for found in results
    ]


def main() -> None:
    """Measure without workers and with them; the table comes last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sim", action="store_true", help="on simulated cards")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tenants", type=int, default=10, help="that the workers belong to")
    parser.add_argument("--spread", type=int, default=POLL_S, help="seconds over which they register")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--library", type=Path, help="not needed: workers ask by themselves")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(Path(folder), is_simulated=options.sim)
        try:
            daemon.wait()
            results = [{"workers": 0} | measure(daemon, options.seconds)]
            crowd = start_crowd(daemon, options.workers, options.tenants, options.spread)
            results.append({"workers": daemon.workers} | measure(daemon, options.seconds))
        finally:
            daemon.stop()
        crowd.wait(timeout=60)
    for left in Path("/dev/shm").glob(f"gpulimit.*{NAME}*"):  # a daemon leaves them to the next one
        left.unlink(missing_ok=True)
    if options.out:
        options.out.write_text(
            json.dumps({"sim": options.sim, "tenants": options.tenants, "results": results}, indent=1)
        )
    print("\n".join(rows_of(results)))


if __name__ == "__main__":
    main()
