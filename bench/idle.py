# SPDX-License-Identifier: Apache-2.0
"""Measures the daemon's CPU time and memory while no program works, without and with many registered processes.

    python bench/idle.py --out idle.json            # on this machine's cards
    python bench/idle.py --sim --workers 200        # on simulated ones

Each worker is a process that registers as the library does and then polls for commands. Each poll uses a new connection
and is answered after 25 s if there is no command. The registrations are spread over 25 s, as on a real node, and so
are the polls.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

POLL_S = 25
"""Seconds after which the daemon answers a poll without a command."""
READY_S = 60
FILES_OF_WORKER = 3
"""Files that the daemon has open per worker: its pidfd, its poll, and one more while it registers."""
FILES_OF_DAEMON = 256
NAME = f"idle-{os.getpid()}"
"""Prefix of this run's names in /dev/shm."""

CROWD = """
import json, os, socket, sys, time
path, name, version, count, tenants, spread_s, poll_s = *sys.argv[1:3], *map(int, sys.argv[3:8])
head = "Host: gpulimit\\r\\nConnection: close\\r\\n"

def ask(text):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
        one.sendall(text.encode())
        answer = b""
        while piece := one.recv(4096):
            answer += piece
    return answer.decode()

def tell(what, answer):
    # In one write, so that what others tell does not come between.
    os.write(1, f"!{what} got {answer[:1000] or 'no answer'!r}\\n".encode())
    os._exit(1)

def work(number):
    said = {"version": version, "pid": os.getpid(), "tenant": f"{name}-{number % tenants}", "name": "idle"}
    body = json.dumps(said)
    length = f"Content-Length: {len(body)}"
    answer = ask(f"POST /v1/workers HTTP/1.1\\r\\n{head}{length}\\r\\n\\r\\n{body}")
    workers = [line.split()[1] for line in answer.splitlines() if line.startswith("Gpulimit-Worker: ")]
    if not workers:
        tell(f"registration of {body}", answer)
    os.write(1, b".")
    while True:
        answer = ask(f"GET /v1/workers/{workers[0]}/commands?after=0&wait={poll_s} HTTP/1.1\\r\\n{head}\\r\\n")
        if answer and not answer.startswith("HTTP/1.1 204 "):
            tell("question for commands", answer)

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
    """Daemon of this run, independent of any other."""

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
        self.log = folder / "daemon.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command + ["--sim"] * is_simulated, stdout=log, stderr=log)

    def wait(self) -> None:
        """Wait until the daemon is ready."""
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"idle.py: the daemon is not ready:\n{self.log.read_text()}")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        from limiter import daemon_client

        state = daemon_client.state()
        return state is not None and not state["daemon"]["not_ready"]

    @property
    def workers(self) -> int:
        """Return the number of registered processes."""
        from limiter import daemon_client

        state = daemon_client.state() or {"tenants": []}
        return sum(len(tenant["workers"]) for tenant in state["tenants"])

    @property
    def cpu_s(self) -> float:
        """Return the CPU time of all of the daemon's threads and of its NVML process since their start."""
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
    """Return the CPU time in seconds of a process's live threads."""
    spent_ns = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            spent_ns += int((thread / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


def measure(daemon: Daemon, seconds: float) -> dict[str, float]:
    """Wait for `seconds`. Return the fraction of a core that the daemon used, and its memory."""
    before, begin = daemon.cpu_s, time.monotonic()
    time.sleep(seconds)
    return {
        "cores": (daemon.cpu_s - before) / (time.monotonic() - begin),
        "resident_mib": daemon.resident_mib,
    }


class Crowd:
    """Processes that register with a daemon and then wait for its commands."""

    def __init__(self, path: str, workers: int, tenants: int, spread_s: int) -> None:
        from limiter._native import lib

        self._workers = workers
        self._signs = b""
        numbers = [str(n) for n in (int(lib.GL_LAYOUT_VERSION), workers, tenants, spread_s, POLL_S)]
        # A session of its own: its processes are ended together.
        self._process = subprocess.Popen(
            [sys.executable, "-c", CROWD, path, NAME, *numbers],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._told = self._process.stdout

    def wait(self) -> None:
        """Wait until all workers are registered."""
        while self._signs.count(b".") < self._workers:
            signs = os.read(self._told.fileno(), 4096)
            self._signs += signs
            self.check(has_ended=not signs)

    def check(self, *, has_ended: bool = False) -> None:
        """Raise SystemExit with the daemon's answer if it refuses a worker, or if the workers have ended."""
        while select.select([self._told], [], [], 0)[0] and (signs := os.read(self._told.fileno(), 4096)):
            self._signs += signs
        registered, _, trouble = self._signs.decode(errors="replace").partition("!")
        if trouble or has_ended:
            why = trouble.partition("\n")[0] or "the rest have gone without a word"
            raise SystemExit(f"idle.py: {len(registered)} of {self._workers} workers registered; then: {why}")

    def stop(self) -> None:
        """End all workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._told.close()


def allow_files(workers: int) -> None:
    """Raise the limit of open files for that many workers. The daemon raises its own up to this one."""
    needed = FILES_OF_WORKER * workers + FILES_OF_DAEMON
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, needed))
        except (ValueError, OSError):
            raise SystemExit(
                f"idle.py: {workers} workers need {needed} open files, and {hard} are allowed"
            ) from None


def rows_of(results: list[dict[str, Any]]) -> list[str]:
    return [
        f"{found['workers']:5} workers wait: {100 * found['cores']:.2f} % of a core, {found['resident_mib']:.0f} MiB resident"
        for found in results
    ]


def compare(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure without workers and with them."""
    with contextlib.ExitStack() as stack:
        daemon = Daemon(folder, is_simulated=options.sim)
        stack.callback(daemon.stop)
        daemon.wait()
        results = [{"workers": 0} | measure(daemon, options.seconds)]
        crowd = Crowd(daemon.socket, options.workers, options.tenants, options.spread)
        stack.callback(crowd.stop)
        crowd.wait()
        results.append({"workers": daemon.workers} | measure(daemon, options.seconds))
        crowd.check()
    return results


def main() -> None:
    """Measure without workers and with them, and print the table last."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sim", action="store_true", help="use simulated cards")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tenants", type=int, default=10, help="number of tenants that the workers belong to")
    parser.add_argument("--spread", type=int, default=POLL_S, help="seconds over which the workers register")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each measurement")
    parser.add_argument("--library", type=Path, help="ignored: the workers use no library")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    allow_files(options.workers)
    with tempfile.TemporaryDirectory() as folder:
        try:
            results = compare(Path(folder), options)
        finally:
            for left in Path("/dev/shm").glob(f"gpulimit.*{NAME}*"):  # a daemon leaves them to the next one
                left.unlink(missing_ok=True)
    if options.out:
        options.out.write_text(
            json.dumps({"sim": options.sim, "tenants": options.tenants, "results": results}, indent=1)
        )
    print("\n".join(rows_of(results)))


if __name__ == "__main__":
    main()
