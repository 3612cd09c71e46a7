# SPDX-License-Identifier: Apache-2.0
"""Measures the delays that a hostile user causes other users, at every bound of the daemon.

Uses simulated GPUs and real processes.

    sudo python bench/hostile_load.py                       # every attack for 20 s
    sudo python bench/hostile_load.py --seconds 5 --attacks none books
    sudo python bench/hostile_load.py --out load.json

Starts a daemon of its own, independent of any other. Two honest tenants share a GPU, and another user attacks. Meanwhile
honest calls are timed: registrations, scrapes, waiting for commands, the age of the heartbeat. Needs root, to act as
several users. All traffic stays on this machine: a Unix socket and ports of 127.0.0.1. Compare each row with the row
`none`, since this program, the attackers and the daemon share the processors. The row `processors` shows the effect of
busy processors alone.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from limiter._native import ffi, lib

HONEST_UID, HOSTILE_UID = 200_100, 200_200
HONEST_NICE = -10
"""Nice value of the daemon and the measuring processes, so that waiting for a processor is not measured."""
NAME = f"load-{os.getpid()}"
PR_SET_PDEATHSIG = 1
MAX_CHILD_S = 900
"""Longest life in seconds of a process that this program starts."""
POLL_S = 2
TENANTS, SLOTS = 32, 512
POLLS = 1900
MAX_MS = {"registration": 200, "scrape": 200, "longpoll_late": 100, "heartbeat": 250}
"""Targets in ms. MAX_SHARE_OFF is in percentage points of a GPU."""
MAX_SHARE_OFF, MAX_LOG_BYTES = 2.0, 1 << 20


# ---- HTTP by hand ----

def dial(path: str | int) -> socket.socket:
    made = socket.socket(socket.AF_UNIX if isinstance(path, str) else socket.AF_INET)
    made.setblocking(True)  # waits while the backlog is full
    made.connect(path if isinstance(path, str) else ("127.0.0.1", path))
    made.settimeout(30)
    return made


def request(method: str, target: str, body: Any = None, headers: str = "") -> bytes:
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return f"{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n{headers}\r\n".encode() + raw


def ask(path: str | int, method: str, target: str, body: Any = None, headers: str = "") -> tuple[int, dict[str, str], bytes]:
    with dial(path) as connection:
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(request(method, target, body, headers + "Connection: close\r\n"))
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(1 << 16):
                data += piece
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode("latin1").split("\r\n")
    found = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
    return int(lines[0].split()[1]) if data else 0, found, rest


def register(path: str, tenant: str, environment: dict[str, str] | None = None) -> tuple[int, dict[str, str], bytes]:
    said = {"version": int(lib.GL_LAYOUT_VERSION), "pid": os.getpid(), "name": "bench", "tenant": tenant}
    return ask(path, "POST", "/v1/workers", {**said, "environment": environment or {}})


# ---- processes ----

def prefer(pid: int) -> None:
    """Give the session of a process a larger part of the processors, as CPUWeight gives to a service."""
    os.setpriority(os.PRIO_PROCESS, pid, HONEST_NICE)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(HONEST_NICE))


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, and after MAX_CHILD_S in any case."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.alarm(MAX_CHILD_S)


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


class Child:
    """Forked process of a user that runs one function. `result` ends the function and returns its result."""

    def __init__(self, uid: int, work: Callable[[Callable[[], bool]], Any]) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            return
        status = 1
        try:
            if uid < HOSTILE_UID:
                os.setsid()
                prefer(os.getpid())
            else:
                os.setpgid(0, 0)
            become(uid)
            end_with_parent()  # again: a change of user clears the setting
            ended = []
            signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
            found = work(lambda: not ended)
            os.write(write, json.dumps(found).encode())
            status = 0
        except BaseException as error:
            sys.stderr.write(f"hostile_load.py: a process of user {uid}: {error!r}\n")
        finally:
            os._exit(status)

    def end(self) -> Any:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        data = b""
        end_s = time.monotonic() + 10
        os.set_blocking(self._read, False)
        while time.monotonic() < end_s:
            with contextlib.suppress(BlockingIOError):
                piece = os.read(self._read, 1 << 16)
                data += piece
                if not piece:
                    break
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._read)
        return json.loads(data) if data else None


def repeat(action: Callable[[], Any]) -> Callable[[Callable[[], bool]], None]:
    """Return work that repeats an action until its end. A refusal by the daemon is not an error."""

    def work(goes_on: Callable[[], bool]) -> None:
        while goes_on():
            try:
                action()
            except OSError:
                time.sleep(0.001)

    return work


# ---- the node ----

class Node:
    """A daemon and two honest tenants that keep a GPU busy."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "hypervisor.sock")
        self.port = free_port()
        self.log = folder / "daemon.log"
        self.environment = os.environ | {"GPULIMIT_SOCKET": self.socket, "GPULIMIT_SIM_STATE": str(folder / "sim")}
        command = [sys.executable, "-m", "limiter", "daemon", "--sim", "--socket", self.socket, "--state-dir", str(folder)]
        command += ["--metrics-addr", f"127.0.0.1:{self.port}", "--state-segment", f"gpulimit.{NAME}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment, start_new_session=True, preexec_fn=end_with_parent
            )
        prefer(self.process.pid)
        end_s = time.monotonic() + 60
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise SystemExit(f"hostile_load.py: the daemon is not ready:\n{self.log.read_text()}")
            time.sleep(0.1)
        self.gpu = json.loads(ask(self.socket, "GET", "/v1/state")[2])["gpus"][0]["uuid"]
        self.loads = [self._load("a", 60), self._load("b", 30)]

    def _is_ready(self) -> bool:
        try:
            return bool(json.loads(ask(self.socket, "GET", "/v1/state")[2])["gpus"])
        except (OSError, ValueError):
            return False

    def _load(self, name: str, percent: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "limiter", "run", "--sim", "--tenant", f"{NAME}-{name}", "--request", str(percent)]
        command += ["--weight", str(percent), "--", sys.executable, "-m", "limiter", "load", "--sim", "--seconds", str(MAX_CHILD_S)]
        quiet = subprocess.DEVNULL
        made = subprocess.Popen(command, env=self.environment, stdout=quiet, stderr=quiet, start_new_session=True, preexec_fn=end_with_parent)
        prefer(made.pid)
        return made

    def spent_ns(self) -> dict[str, int]:
        tenants = json.loads(ask(self.socket, "GET", "/v1/state")[2])["tenants"]
        return {
            t["tenant"][-1]: sum(g.get("spent_ns", 0) for g in t["gpus"]) for t in tenants
            if t["tenant"] in (f"{NAME}-a", f"{NAME}-b")
        }

    def stop(self) -> None:
        for one in [*self.loads, self.process]:
            one.terminate()
        for one in [*self.loads, self.process]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(10)
            one.kill()
        for path in Path("/dev/shm").glob(f"gpulimit.*{NAME}*"):
            path.unlink(missing_ok=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- honest calls ----

def timed_ms(call: Callable[[], Any]) -> float:
    begin = time.monotonic()
    call()
    return (time.monotonic() - begin) * 1e3


def registrations(node: Node) -> Callable[[Callable[[], bool]], list[float]]:
    def work(goes_on: Callable[[], bool]) -> list[float]:
        took_ms, number = [], 0
        while goes_on():
            number += 1
            read_end, write_end = os.pipe()
            pid = os.fork()
            if pid == 0:
                begin = time.monotonic()
                status = register(node.socket, f"{NAME}-new-{number % 4}")[0]
                os.write(write_end, struct.pack("di", (time.monotonic() - begin) * 1e3, status))
                os._exit(0)
            took, status = struct.unpack("di", os.read(read_end, 12))
            os.waitpid(pid, 0)
            os.close(read_end), os.close(write_end)
            took_ms.append(took if status == 200 else 1e6)
            time.sleep(0.1)
        return took_ms

    return work


def scrapes(node: Node) -> Callable[[Callable[[], bool]], list[float]]:
    def work(goes_on: Callable[[], bool]) -> list[float]:
        took_ms: list[float] = []
        while goes_on():
            begin = time.monotonic()
            status = ask(node.port, "GET", "/metrics", headers="Accept-Encoding: gzip\r\n")[0]
            took_ms.append((time.monotonic() - begin) * 1e3 if status == 200 else 1e6)
            time.sleep(0.1)
        return took_ms

    return work


def longpolls(node: Node) -> Callable[[Callable[[], bool]], list[float]]:
    def work(goes_on: Callable[[], bool]) -> list[float]:
        worker = register(node.socket, f"{NAME}-poll")[1]["gpulimit-worker"]
        late_ms: list[float] = []
        while goes_on():
            target = f"/v1/workers/{worker}/commands?after=1000&wait={POLL_S}"
            late_ms.append(timed_ms(lambda: ask(node.socket, "GET", target)) - POLL_S * 1e3)  # noqa: B023
        return late_ms

    return work


def heartbeats(_: Node) -> Callable[[Callable[[], bool]], list[float]]:
    def work(goes_on: Callable[[], bool]) -> list[float]:
        fd = os.open(f"/dev/shm/gpulimit.{NAME}", os.O_RDONLY)
        state = ffi.from_buffer("struct gl_state *", mmap.mmap(fd, ffi.sizeof("struct gl_state"), prot=mmap.PROT_READ))
        oldest_ms = 0.0
        while goes_on():
            oldest_ms = max(oldest_ms, (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - state.heartbeat_ns) / 1e6)
            time.sleep(0.004)
        return [oldest_ms]

    return work


def hostile() -> int:
    """Return the current attacker's user id. Each attack has a new user, whose budgets are unused."""
    return HOSTILE_UID + attacks_made


attacks_made = 0


# ---- attacks: each returns processes ----

def attack_none(_: Node) -> list[Child]:
    return []


def attack_processors(_: Node) -> list[Child]:
    """Keep all processors busy without calls to the daemon: the effect does not depend on the daemon's bounds."""
    return [Child(hostile(), repeat(lambda: None)) for _ in range(4 * (os.cpu_count() or 1))]


def hold(path: str | int, count: int, text: bytes) -> Callable[[Callable[[], bool]], None]:
    def work(goes_on: Callable[[], bool]) -> None:
        held: list[socket.socket] = []
        while goes_on():
            while len(held) < count and goes_on():
                try:
                    held.append(dial(path))
                    held[-1].sendall(text)
                except OSError:
                    time.sleep(0.001)
            time.sleep(0.2)
            while held and len(held) > count // 2:  # open new ones in their place
                held.pop(0).close()

    return work


def attack_headers(node: Node) -> list[Child]:
    text = b"POST /v1/workers HTTP/1.1\r\nX: "
    return [Child(hostile(), hold(place, 3000, text)) for place in (node.socket, node.port)]


def attack_churn(node: Node) -> list[Child]:
    """Connect without pause and send no request."""
    def knock(place: str | int) -> Callable[[], None]:
        def once() -> None:
            with dial(place) as one:  # reset it, so that the node does not run out of ports
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        return once

    return [Child(hostile(), repeat(knock(place))) for place in (node.socket, node.socket, node.port)]


def polls(node: Node) -> Callable[[Callable[[], bool]], None]:
    """Return work that waits for commands on POLLS connections. All are answered within the same second."""
    def work(goes_on: Callable[[], bool]) -> None:
        worker = register(node.socket, f"{NAME}-p", {"GPULIMIT_COMPUTE": "1"})[1]["gpulimit-worker"]
        text = request("GET", f"/v1/workers/{worker}/commands?after=1000&wait=10")
        held = [dial(node.socket) for _ in range(POLLS)]
        for one in held:
            one.setblocking(False)
        while goes_on():
            for one in held:
                with contextlib.suppress(OSError):
                    one.sendall(text)
            end_s = time.monotonic() + 11
            while goes_on() and time.monotonic() < end_s:
                time.sleep(0.1)
            for one in held:
                with contextlib.suppress(OSError):
                    one.recv(1 << 16)

    return work


def attack_polls(node: Node) -> list[Child]:
    return [Child(hostile(), polls(node))]


def attack_slow(node: Node) -> list[Child]:
    text = request("GET", "/metrics") * 40
    return [Child(hostile(), hold(node.port, 200, text)), Child(hostile(), hold(node.socket, 200, request("GET", "/v1/state") * 40))]


def attack_requests(node: Node) -> list[Child]:
    made = [Child(hostile(), repeat(lambda: ask(node.socket, "GET", "/v1/state"))) for _ in range(8)]
    made += [Child(hostile(), repeat(lambda: ask(node.port, "GET", "/metrics"))) for _ in range(4)]
    pipelined = request("GET", "/v1/state") * 8000

    def flood() -> None:
        with dial(node.socket) as one:
            one.sendall(pipelined)

    return [*made, Child(hostile(), repeat(flood))]


def attack_rubbish(node: Node) -> list[Child]:
    def odd() -> None:
        ask(node.socket, "POST", "/v1/workers", b"not gzip", "Content-Encoding: gzip\r\n")
        register(node.socket, "../x")
        register(node.socket, f"{NAME}-x", {"GPULIMIT_REQUEST": "100%"})
        with dial(node.socket) as one:
            one.sendall(b"\0\1\2 nonsense\r\n\r\n")
        ask(node.socket, "POST", "/v1/workers", b"[" * 60_000)

    return [Child(hostile(), repeat(odd)) for _ in range(4)]


def fill(books: mmap.mmap, gpu: str) -> None:
    """Claim every slot on every device."""
    usage = ffi.from_buffer("struct gl_usage *", books, require_writable=True)
    for entry in range(lib.GL_MAX_DEVICES):
        device = usage.device[entry]
        device.uuid = bytes.fromhex(gpu.partition("-")[2].replace("-", "")) if entry == 0 else bytes([entry]) * 16
        device.card_bytes, device.compute_limit_percent, device.ready = 1 << 36, 100, 1
    for slot in range(SLOTS):
        usage.slot[slot].pid = 1000 + slot
        usage.slot[slot].generation = 1
        for entry in range(lib.GL_MAX_DEVICES):
            usage.slot[slot].account[entry].spent_ns = 1
    usage.header.slots_used = SLOTS


def full_books(node: Node, number: int, *, rings: bool, asks: bool) -> Callable[[Callable[[], bool]], None]:
    def work(goes_on: Callable[[], bool]) -> None:
        status, headers, _ = register(node.socket, f"{NAME}-h{number}", {"GPULIMIT_COMPUTE": "1"})
        if status != 200:
            raise SystemExit(f"not registered: {status} {headers.get('gpulimit-error')}")
        fd = os.open(f"/dev/shm/{headers['gpulimit-usage']}", os.O_RDWR)
        books = mmap.mmap(fd, ffi.sizeof("struct gl_usage"))
        fill(books, node.gpu)
        slots = ffi.offsetof("struct gl_usage", "slot")
        fcntl.lockf(fd, fcntl.LOCK_EX, ffi.sizeof("struct gl_slot") * SLOTS, slots)
        bell = ffi.addressof(ffi.from_buffer("struct gl_usage *", books, require_writable=True).header, "doorbell")
        while goes_on():
            if rings:
                lib.gl_bell_ring(bell)
                time.sleep(0.0006)
            elif asks:
                with contextlib.suppress(OSError):
                    ask(node.socket, "GET", "/v1/state")
            else:
                time.sleep(0.1)

    return work


def of_books(*, rings: bool = False, asks: bool = False) -> Callable[[Node], list[Child]]:
    def attack(node: Node) -> list[Child]:
        made = [Child(hostile(), full_books(node, n, rings=rings, asks=asks)) for n in range(TENANTS)]
        time.sleep(2)
        return made

    return attack


def attack_all(node: Node) -> list[Child]:
    made = [Child(hostile(), full_books(node, n, rings=n % 2 == 0, asks=n % 2 == 1)) for n in range(TENANTS)]
    time.sleep(2)
    return [*made, *attack_headers(node), *attack_slow(node), *attack_requests(node)[::4], *attack_rubbish(node)[:1]]


ATTACKS: dict[str, Callable[[Node], list[Child]]] = {
    "none": attack_none, "processors": attack_processors, "headers": attack_headers, "churn": attack_churn, "polls": attack_polls, "slow": attack_slow, "requests": attack_requests,
    "rubbish": attack_rubbish, "books": of_books(), "books-state": of_books(asks=True),
    "books-bells": of_books(rings=True), "all": attack_all,
}


# ---- measuring ----

def measure(node: Node, name: str, seconds: float) -> dict[str, Any]:
    global attacks_made
    attacks_made += 1
    logged = node.log.stat().st_size
    attackers = ATTACKS[name](node)
    honest = {
        "registration": Child(HONEST_UID, registrations(node)), "scrape": Child(HONEST_UID, scrapes(node)),
        "longpoll_late": Child(HONEST_UID + 1, longpolls(node)), "heartbeat": Child(HONEST_UID, heartbeats(node)),
    }
    time.sleep(0.5)
    cpu_s, began_s, before = cpu_seconds(node.process.pid), time.monotonic(), node.spent_ns()
    time.sleep(seconds)
    after = node.spent_ns()
    used = (cpu_seconds(node.process.pid) - cpu_s) / (time.monotonic() - began_s)
    found = {what: sorted(child.end() or [1e6]) for what, child in honest.items()}
    for one in attackers:
        one.end()
    got = {tenant: after[tenant] - before.get(tenant, 0) for tenant in after}
    row: dict[str, Any] = {"attack": name, "log_bytes": node.log.stat().st_size - logged, "cpu": used}
    for what, values in found.items():
        row[f"{what}_ms"], row[f"{what}_p50_ms"] = values[-1], values[len(values) // 2]
    row["share_a"] = 100 * got.get("a", 0) / max(1, sum(got.values()))
    time.sleep(2)
    return row


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'attack':12} {'registration':>16} {'scrape':>16} {'poll late':>10} {'heartbeat':>10} {'share off':>10} {'log':>9} {'daemon':>7}"]
    lines += [f"{'':12} {'p50/max ms':>16} {'p50/max ms':>16} {'max ms':>10} {'max ms':>10} {'points':>10} {'bytes':>9} {'CPU':>7}"]
    for row in rows:
        pair = [f"{row[f'{w}_p50_ms']:.0f}/{row[f'{w}_ms']:.0f}" for w in ("registration", "scrape")]
        off = row["share_a"] - rows[0]["share_a"]
        lines.append(
            f"{row['attack']:12} {pair[0]:>16} {pair[1]:>16} {row['longpoll_late_ms']:>10.0f} {row['heartbeat_ms']:>10.0f} "
            f"{off:>+10.1f} {row['log_bytes']:>9} {row['cpu']:>7.0%}"
        )
    lines.append(f"{'target':12} {MAX_MS['registration']:>16} {MAX_MS['scrape']:>16} {MAX_MS['longpoll_late']:>10} "
                 f"{MAX_MS['heartbeat']:>10} {MAX_SHARE_OFF:>10.1f} {MAX_LOG_BYTES:>9}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--out", type=Path)
    told = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("hostile_load.py: needs root, to be several users")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: nothing outlives the run
    with tempfile.TemporaryDirectory(prefix="gpulimit-") as name:
        Path(name).chmod(0o755)
        load_before = os.getloadavg()
        node = Node(Path(name))
        try:
            time.sleep(3)
            rows = []
            for attack in told.attacks:
                rows.append(measure(node, attack, told.seconds))
                print(json.dumps(rows[-1]), file=sys.stderr)
            text = node.log.read_text()
        finally:
            node.stop()
        print(show(rows))
        print(f"log: {len(text)} bytes, {text.count('Traceback')} tracebacks")
        print("load average before and after:", *(" ".join(f"{value:.1f}" for value in load) for load in (load_before, os.getloadavg())), sep=" | ")
        if "Traceback" in text:
            print(f"the daemon's log, which must hold no traceback:\n{text}")
        if told.out:
            told.out.write_text(json.dumps({"targets": MAX_MS, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
