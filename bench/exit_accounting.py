# SPDX-License-Identifier: Apache-2.0
"""Checks that all GPU time of a program is charged, including the time just before it ends or goes idle.

    python bench/exit_accounting.py --library build/shim/libgpulimit.so --out exit_accounting.json     # a real card
    make -s build && .venv/bin/python bench/exit_accounting.py --library build/shim/libgpulimit.so --sim

On a machine that has only a card, build first as bench/on_gpu.sh does:

    source bench/set_up.sh && "$PYTHON" bench/exit_accounting.py --library "$library" --out "$OUT/exit_accounting.json"

Programs (exit_accounting.c) queue kernels of one length at once, wait for them or not, and end. The time charged in the
usage segment is then compared with the program's own events. A limited program's events would include its pauses, so
it is compared with the same program without a limit. The sides: `free`, metered only; `half`, limited to 50 %;
`daemon`, registered with a daemon. The daemon is asked for the share throughout; the last column is the highest answer.

`churn` rows: five processes that start and end all the time, as one tenant and, with the daemon, as five. The charged
time is compared with the union of the times in which a process had work. `left` rows: programs that end while work is
queued. The time to the end of the process and the charged time show what the card did with that work. About three
minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
NAME = f"exits-{os.getpid()}"
"""Prefix of this run's names in /dev/shm."""
READY_S = 60
US, MS, S = 1_000, 1_000_000, 1_000_000_000
FIRST_NS = 2 * MS
"""Length of the first kernel, behind which the other kernels are queued."""
HOST_BOUND = 1.4
"""Ratio of a burst's time to that of its kernels above which the host is too slow to queue them."""
BURSTS = ((5 * US, 20000), (50 * US, 4000), (500 * US, 20), (500 * US, 400), (15 * MS, 40), (200 * MS, 3), (1 * S, 2))
ENDS = (("sync", "return"), ("event", "return"), ("poll", "return"), ("sync", "fast"), ("none", "destroy"))
MAX_LIMITED_S = 1.0
"""Longest burst that also runs on the side `half`."""
CHURNERS = 5
ALLOWED = 0.01


@dataclass
class Side:
    """One way to run a program: with a quota, and with or without a daemon."""

    name: str
    library: Path
    folder: Path
    is_simulated: bool
    percent: int = 100
    daemon: subprocess.Popen[bytes] | None = None
    tenants: int = 0

    def start(self) -> None:
        """Start the daemon, if the side has one, and wait until it is ready."""
        from limiter import daemon_client

        if self.name != "daemon":
            return
        socket = str(self.folder / "hypervisor.sock")
        os.environ["GPULIMIT_SOCKET"] = socket
        options = {"socket": socket, "state-dir": str(self.folder), "metrics-addr": "", "state-segment": f"gpulimit.s.{NAME}"}
        command = [sys.executable, "-m", "limiter", "daemon"] + [w for n, v in options.items() for w in (f"--{n}", v)]
        log = self.folder / "daemon.log"
        with log.open("ab") as file:
            self.daemon = subprocess.Popen(command + ["--sim"] * self.is_simulated, stdout=file, stderr=file)
        deadline = time.monotonic() + READY_S
        while (state := daemon_client.state()) is None or state["daemon"]["not_ready"]:
            if self.daemon.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"exit_accounting.py: the daemon is not ready:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the daemon."""
        if self.daemon:
            self.daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.daemon.wait(timeout=20)
            del os.environ["GPULIMIT_SOCKET"]

    def tenant(self) -> str:
        """Return the name of a new tenant."""
        self.tenants += 1
        return f"{NAME}-{self.name}-{self.tenants}"

    def environ(self, tenant: str) -> dict[str, str]:
        """Return the environment of the tenant's processes."""
        quota = {"GPULIMIT_TENANT": tenant, "GPULIMIT_COMPUTE": str(self.percent)}
        return dict(os.environ) | quota | {"LD_PRELOAD": str(self.library.resolve())}


@dataclass
class Books:
    """A tenant's usage segment, kept open: it may be removed with the tenant's last process."""

    tenant: str
    fd: int = -1

    def open(self) -> None:
        """Open the segment. Requires a live process of the tenant."""
        from limiter import segment

        self.fd = os.open(segment.path_of(self.tenant), os.O_RDONLY | os.O_CLOEXEC)

    def used_ns(self) -> int:
        """Return the GPU time charged to the tenant on the first card that it used."""
        from limiter import segment

        usage = segment.read_open(self.fd, segment.path_of(self.tenant))
        return max((device.used_ns for device in usage.devices), default=0)

    def close(self) -> None:
        os.close(self.fd)


class Program:
    """One run of exit_accounting.c."""

    def __init__(self, binary: Path, environ: dict[str, str], kernel_ns: int, count: int, wait: str, end: str) -> None:
        command = [str(binary), str(kernel_ns), str(count), wait, end]
        self.process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit(f"exit_accounting.py: {command} ended with {self.process.wait()}")

    def go(self) -> None:
        """Let the program begin."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[int, int, int]:
        """Wait for the end. Return the kernels' time by events, and the host times around the work, in ns."""
        out, _ = self.process.communicate(timeout=120)
        total, begin, end = (int(word) for word in out.split())
        return total, begin, end


class ShareWatch:
    """Repeatedly asks `gpulimit status` of the daemon's side for the share of all tenants."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.most = 0.0
        self._stop = threading.Event()
        self._environ = environ
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        command = [sys.executable, "-m", "limiter", "status", "--json", "--over", "0.3"]
        while not self._stop.is_set():
            done = subprocess.run(command, env=self._environ, capture_output=True, text=True, check=False, cwd=HERE.parent)
            if done.returncode == 0:
                shares = [tenant.get("compute_share") or 0.0 for tenant in json.loads(done.stdout)["tenants"]]
                self.most = max(self.most, *shares, 0.0)

    def __enter__(self) -> ShareWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@dataclass
class Result:
    """Rows of the table, as data."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    alone_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    """Time of a burst without a limit, by kernel length and number of kernels."""

    def add(self, side: str, what: str, true_ns: int, charged_ns: int, *, is_checked: bool = True, **more: Any) -> None:
        error = charged_ns / true_ns - 1 if true_ns else 0.0
        row = {"side": side, "what": what, "true_ms": true_ns / MS, "charged_ms": charged_ns / MS, "error": error}
        self.rows.append(row | {"bad": is_checked and abs(error) > ALLOWED} | more)
        print(line(self.rows[-1]), file=sys.stderr, flush=True)


def line(row: dict[str, Any]) -> str:
    """Return one line of the table."""
    note = f"  {row['note']}" if "note" in row else ""
    mark = "  <" if row["bad"] else ""
    return (
        f"{row['side']:7} {row['what']:34} {row['true_ms']:10.2f} {row['charged_ms']:10.2f} {100 * row['error']:+8.2f} %{note}{mark}"
    )


def length(ns: int) -> str:
    return f"{ns // S} s" if ns >= S else f"{ns / MS:g} ms" if ns >= 100 * US else f"{ns // US} us"


def burst(side: Side, binary: Path, result: Result, kernel_ns: int, count: int, wait: str, end: str) -> None:
    """Run one program alone on the card."""
    tenant = side.tenant()
    program = Program(binary, side.environ(tenant), kernel_ns, count, wait, end)
    books = Books(tenant)
    books.open()
    before = books.used_ns()
    program.go()
    total, _, _ = program.end()
    key = (kernel_ns, count)
    note: dict[str, Any] = {}
    if side.is_simulated:
        total = FIRST_NS + kernel_ns * count  # the host may be too slow to keep the card busy
    elif total and total > HOST_BOUND * (FIRST_NS + kernel_ns * count):
        note = {"note": "host-bound", "is_checked": False}
    if side.name == "free" and wait == "sync" and total:
        result.alone_ns.setdefault(key, total)
    if side.percent < 100 or not total:
        total = result.alone_ns[key]
    what = f"{count} x {length(kernel_ns)}, {wait}, {end}"
    result.add(side.name, what, total, books.used_ns() - before, **note)
    books.close()


def left(side: Side, binary: Path, result: Result, end: str) -> None:
    """Run a program that ends while most of its work is queued."""
    tenant, kernel_ns, count = side.tenant(), 100 * MS, 8
    program = Program(binary, side.environ(tenant), kernel_ns, count, "none", end)
    books = Books(tenant)
    books.open()
    before = books.used_ns()
    program.go()
    _, _, launched = program.end()
    took = time.monotonic_ns() - launched
    what = f"left {count} x {length(kernel_ns)}, {end}"
    note = f"ended {took / MS:.0f} ms after its launches"
    result.add(side.name, what, min(took, count * kernel_ns), books.used_ns() - before, is_checked=False, note=note)
    books.close()


def union(spans: list[tuple[int, int]]) -> int:
    """Return the length of the union of time spans."""
    total = until = 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total


def churn(side: Side, binary: Path, result: Result, seconds: float, *, tenants: int) -> None:
    """Run five processes that repeatedly start, work for about 50 ms and end."""
    names = [side.tenant() for _ in range(tenants)]
    books = [Books(name) for name in names]
    spans: list[tuple[int, int]] = []
    # A usage segment without a live process is reset by the next process. A waiting process prevents that.
    keepers = [Program(binary, side.environ(name), MS, 0, "none", "fast") for name in names]
    for book in books:
        book.open()
    before = sum(book.used_ns() for book in books)
    until = time.monotonic() + seconds

    def work(number: int) -> None:
        mine = number % tenants
        while time.monotonic() < until:
            program = Program(binary, side.environ(names[mine]), MS, 50, "sync", "return")
            program.go()
            total, begin, end = program.end()
            spans.append((end - max(total, end - begin), end))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(CHURNERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = sum(book.used_ns() for book in books) - before
    for book, keeper in zip(books, keepers, strict=True):
        book.close()
        keeper.process.kill()
        keeper.process.communicate()
    what = f"churn, {CHURNERS} processes, {tenants} tenant{'s' * (tenants > 1)}"
    busy, most = union(spans), len(spans) * 52 * MS
    note = f"{len(spans)} processes; their kernels' lengths sum to {most / MS:.0f} ms"
    result.add(side.name, what, min(busy, most), used, is_checked=False, note=note)


def run_side(side: Side, binary: Path, result: Result, options: argparse.Namespace) -> None:
    """Run all programs of one side."""
    for kernel_ns, count in BURSTS:
        for wait, end in ENDS if side.name == "free" else ENDS[:1] + ENDS[3:4]:
            if side.name == "half" and kernel_ns * count > MAX_LIMITED_S * S:
                continue
            burst(side, binary, result, kernel_ns, count, wait, end)
    for end in ("return", "destroy", "kill") if side.name == "free" else ():
        left(side, binary, result, end)
    churn(side, binary, result, options.seconds, tenants=1)
    if side.name == "daemon":
        churn(side, binary, result, options.seconds, tenants=CHURNERS)


def main() -> None:
    """Run all sides and print the table last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--sides", default="free,half,daemon", help="comma-separated names of sides")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of each churn")
    parser.add_argument("--sim", action="store_true", help="use the simulated driver, in build/sim beside the library")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = Result()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        search = []
        if options.sim:
            sim = options.library.resolve().parents[1] / "sim"
            os.environ |= {"LD_LIBRARY_PATH": str(sim), "GPULIMIT_SIM_STATE": str(folder / "state"), "GPULIMIT_SIM_PROFILE": "small"}
            search = [f"-L{sim}"]
        binary = folder / "burst"
        subprocess.run(["cc", "-O2", "-o", binary, HERE / "exit_accounting.c", *search, "-l:libcuda.so.1"], check=True)
        for label in options.sides.split(","):
            side = Side(label, options.library, folder, options.sim, percent=50 if label == "half" else 100)
            try:
                side.start()
                with ShareWatch(dict(os.environ)) if label == "daemon" else contextlib.nullcontext() as watch:
                    run_side(side, binary, result, options)
                if watch is not None:
                    print(f"daemon: the largest share that status showed is {100 * watch.most:.1f} %", file=sys.stderr)
                    result.rows.append(
                        {"side": label, "what": "largest share in status", "true_ms": 0, "charged_ms": 0, "error": 0.0,
                         "bad": watch.most > 1.0, "note": f"{100 * watch.most:.1f} %"}
                    )  # fmt: skip
            finally:
                side.stop()
                for left_over in Path("/dev/shm").glob(f"gpulimit.*{NAME}*"):
                    left_over.unlink(missing_ok=True)
                if options.out:
                    options.out.write_text(json.dumps(result.rows, indent=1))
    print(f"{'side':7} {'what':34} {'true ms':>10} {'charged ms':>10} {'error':>10}")
    print("\n".join(line(row) for row in result.rows))
    checked = [row for row in result.rows if not row["what"].startswith(("churn", "left"))]
    print(f"{sum(row['bad'] for row in checked)} of {len(checked)} rows are off by more than {100 * ALLOWED:.0f} %")


if __name__ == "__main__":
    main()
