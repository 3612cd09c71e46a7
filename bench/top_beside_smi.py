# SPDX-License-Identifier: Apache-2.0
"""Compares the figures of `gpulimit top` with those of nvidia-smi at the same moment.

    python bench/top_beside_smi.py --library build/shim/libgpulimit.so --out top.json

First two tenants of a daemon load one card, with quotas and weights 1 : 3. Then one tenant without a daemon limits
itself to half of the card. Each time both programs are asked at once. The figures are printed side by side with the
allowed difference, and then the output of both programs. Ends with status 1 if a figure is off.

Memory may be off by 64 MiB: usage segments count a context as it was created, and the driver later takes more for code.
`top` counts memory that the driver reserves as used. nvidia-smi shows it separately, and it is added here. Power and
temperature change within the second between two samples.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
MEMORY_MIB, TOTAL_RATIO, POWER_RATIO, POWER_W, TEMPERATURE_C, BUSY_PERCENT = 64, 0.02, 0.15, 15, 6, 80
GPU_FIELDS = ("uuid", "name", "memory.used", "memory.reserved", "memory.total", "utilization.gpu", "power.draw", "temperature.gpu")
APP_FIELDS = ("gpu_uuid", "pid", "used_gpu_memory")
WEIGHTS = {"a": 100, "b": 300}
HELD_MIB = {"a": 1024, "b": 1536, "c": 1024}
"""Enough for kernels of at least 0.7 ms. A tenant that launches more slowly than the GPU works does not use its share."""
LIMIT_PERCENT = 50
START_S, SETTLE_S = 40.0, 3.0


@dataclass(frozen=True)
class Row:
    """One figure of both programs. None if a program does not show it."""

    what: str
    top: Any
    smi: Any
    bound: str
    is_right: bool


def near(what: str, top: float | None, smi: float | None, within: float, unit: str) -> Row:
    """Return a figure that may differ by `within`. It is not compared if nvidia-smi does not know it."""
    shown = [None if value is None else f"{value:.0f} {unit}" for value in (top, smi)]
    is_right = smi is None or (top is not None and abs(top - smi) <= within)
    return Row(what, *shown, f"± {within:.0f} {unit}", is_right)


def same(what: str, top: Any, smi: Any) -> Row:
    return Row(what, top, smi, "the same", top == smi)


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # [N/A], [Not Supported]


class Machine:
    """Starts the daemon and the tenants, and asks both programs."""

    def __init__(self, library: Path, folder: Path, prefix: str) -> None:
        self.library = library
        self.folder = folder
        self.prefix = prefix
        self.socket = str(folder / "daemon.sock")
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, arguments: Sequence[str], env: dict[str, str]) -> subprocess.Popen[str]:
        with (self.folder / "log").open("a") as log:
            command = [sys.executable, "-P", "-m", "limiter", *arguments]
            process = subprocess.Popen(command, env=self.env() | env, cwd=ROOT, stdout=log, stderr=log, text=True)
        self.processes.append(process)
        return process

    def env(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        return os.environ | {"PYTHONPATH": path, "GPULIMIT_SOCKET": self.socket}

    def start_daemon(self) -> None:
        segment = f"gpulimit.s.{self.prefix}-node"
        options = ["--socket", self.socket, "--state-dir", str(self.folder / "state"), "--state-segment", segment]
        self.start(["daemon", *options, "--metrics-addr", "", "--nvml-interval", "500ms", "--linger", "0s"], {})

    def start_tenant(self, name: str, memory_mib: int, **quota: object) -> int:
        """Start a tenant that keeps the queue full with kernels on the memory that it holds. Return its pid."""
        variables = {f"GPULIMIT_{key.upper()}": str(value) for key, value in quota.items()}
        env = {"LD_PRELOAD": str(self.library), "GPULIMIT_TENANT": f"{self.prefix}-{name}"} | variables
        return self.start(["load", "--seconds", "300", "--touch", "--memory", f"{memory_mib}MiB"], env).pid

    def end(self) -> None:
        """End all processes, the tenants before their daemon, and remove their shared memory."""
        for process in reversed(self.processes):
            process.terminate()
            process.wait(timeout=30)
        self.processes.clear()
        for segment in Path("/dev/shm").glob(f"gpulimit.*.{self.prefix}-*"):
            segment.unlink(missing_ok=True)

    def top(self, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "limiter", "top", "--once", *options]
        return subprocess.Popen(command, env=self.env(), cwd=ROOT, stdout=subprocess.PIPE, text=True)

    def look(self) -> dict[str, Any]:
        """Ask both at once. Return top's node, and nvidia-smi's cards by UUID and processes by (UUID, pid)."""
        asked = [self.top("--json"), ask_smi("gpu", GPU_FIELDS), ask_smi("compute-apps", APP_FIELDS)]
        top, cards, apps = (process.communicate(timeout=60)[0] for process in asked)
        return {
            "node": json.loads(top)["nodes"][0],
            "status": asked[0].returncode,
            "cards": {cells[0]: dict(zip(GPU_FIELDS, cells, strict=True)) for cells in split(cards)},
            "apps": {(cells[0], int(cells[1])): number(cells[2]) for cells in split(apps)},
        }

    def look_when_busy(self, count: int) -> dict[str, Any]:
        """Ask both once all tenants have run for SETTLE_S. Raises RuntimeError if they do not run within START_S."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            node = self.look()["node"]
            if sum(bool(t["got"] and t["memory_bytes"]) for t in self.own_tenants(node)) == count:
                time.sleep(SETTLE_S)
                return self.look()
            time.sleep(0.2)
        raise RuntimeError(f"the tenants did not run within {START_S:g} s:\n{(self.folder / 'log').read_text()[-3000:]}")

    def own_tenants(self, node: dict[str, Any]) -> list[dict[str, Any]]:
        return [t for card in node["cards"] for t in card["tenants"] if t["name"].startswith(f"{self.prefix}-")]

    def pictures(self) -> str:
        """Return the text output of both programs."""
        shown = self.top("--width", "110").communicate(timeout=60)[0]
        smi = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=60, check=False).stdout
        return f"$ gpulimit top --once --width 110\n{shown.rstrip()}\n\n$ nvidia-smi\n{smi.rstrip()}"


def ask_smi(what: str, fields: Sequence[str]) -> subprocess.Popen[str]:
    command = ["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def split(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]


def card_rows(look: dict[str, Any], card: dict[str, Any]) -> list[Row]:
    """Return the rows of the loaded card: its properties and its state."""
    smi = look["cards"].get(card["uuid"], {})
    used, reserved, total, busy, power, temperature = (number(smi.get(field, "")) for field in GPU_FIELDS[2:])
    both = [None if card["utilization"] is None else 100 * card["utilization"], busy]
    power_w = POWER_W + POWER_RATIO * (power or 0)
    mib = {key: card[key] and card[key] / MIB for key in ("memory_bytes", "total_bytes")}
    return [
        same("uuids of all cards", *(", ".join(sorted(u)) for u in ([c["uuid"] for c in look["node"]["cards"]], look["cards"]))),
        same("name", card["name"], smi.get("name")),
        near("memory used, with reserved", mib["memory_bytes"], None if used is None else used + (reserved or 0), MEMORY_MIB, "MiB"),
        near("memory in all", mib["total_bytes"], total, TOTAL_RATIO * (total or 0), "MiB"),
        Row("utilisation", *(None if v is None else f"{v:.0f} %" for v in both), f"both ≥ {BUSY_PERCENT} %", all((v or 0) >= BUSY_PERCENT for v in both)),
        near("power", card["power_w"], power, power_w, "W"),
        near("temperature", card["temperature_c"], temperature, TEMPERATURE_C, "°C"),
    ]  # fmt: skip


def process_rows(look: dict[str, Any], uuid: str, pids: dict[str, int]) -> list[Row]:
    """Return rows of the processes on the card, and of the memory of each tenant's process. Ignore other tenants."""
    top = {p["pid"]: p for p in look["node"]["processes"] if p["card"] == uuid}
    theirs = {pid for pid, process in top.items() if process["tenant"] and pid not in pids.values()}
    top = {pid: process for pid, process in top.items() if pid not in theirs}
    smi = {pid: mib for (card, pid), mib in look["apps"].items() if card == uuid and pid not in theirs}
    rows = [same("pids on the card", *(" ".join(map(str, sorted(side))) for side in (top, smi)))]
    for name, pid in pids.items():
        mib = top.get(pid, {}).get("memory_bytes")
        rows.append(near(f"memory of {name}, pid {pid}", mib and mib / MIB, smi.get(pid), MEMORY_MIB, "MiB"))
        rows.append(same(f"tenant of pid {pid}", str(top.get(pid, {}).get("tenant")).rpartition("-")[2], name))
    return rows


def share_rows(tenants: Sequence[dict[str, Any]], points: float) -> list[Row]:
    """Return rows of the tenants' shares of the last second, beside their due shares: nvidia-smi shows no shares."""
    rows = []
    for tenant in sorted(tenants, key=lambda t: t["name"]):
        kind, due = ("limit", tenant["limit_percent"]) if tenant["due"] is None else ("due", 100 * tenant["due"])
        got, name = 100 * tenant["got"], tenant["name"].rpartition("-")[2]
        rows.append(Row(f"share of {name}", f"{got:.1f} %", f"({kind} {due:.1f} %)", f"± {points:g} points", abs(got - due) <= points))
    return rows


def status_row(look: dict[str, Any], expected: int, meaning: str) -> Row:
    return Row("exit status", look["status"], f"({expected}: {meaning})", "the same", look["status"] == expected)


def with_daemon(machine: Machine, points: float) -> tuple[list[Row], str]:
    """Compare with two tenants of a daemon, weights 1 : 3."""
    machine.start_daemon()
    pids = {n: machine.start_tenant(n, HELD_MIB[n], memory="4GiB", weight=weight) for n, weight in WEIGHTS.items()}
    look = machine.look_when_busy(len(pids))
    card, tenants = loaded(machine, look)
    first = status_row(look, 0, "all was read")
    return [first, *card_rows(look, card), *process_rows(look, card["uuid"], pids), *share_rows(tenants, points)], machine.pictures()


def without_daemon(machine: Machine, points: float) -> tuple[list[Row], str]:
    """Compare with one tenant that limits itself. `top` reads NVML and the tenant's usage segment."""
    machine.socket = ""
    pids = {"c": machine.start_tenant("c", HELD_MIB["c"], memory="4GiB", compute=LIMIT_PERCENT, socket="", wait="0")}
    look = machine.look_when_busy(len(pids))
    card, tenants = loaded(machine, look)
    first = status_row(look, 3, "no daemon")
    # NVML's utilisation shows that there was a kernel, not for how long, so a half-used card may look busy or idle.
    cards = [row for row in card_rows(look, card) if row.what != "utilisation"]
    return [first, *cards, *process_rows(look, card["uuid"], pids), *share_rows(tenants, points)], machine.pictures()


def loaded(machine: Machine, look: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the card with our tenants, and these tenants."""
    own = machine.own_tenants(look["node"])
    return next(card for card in look["node"]["cards"] if own[0] in card["tenants"]), own


PARTS = {"with-daemon": with_daemon, "without-daemon": without_daemon}


def table(rows: Sequence[Row]) -> str:
    lines = [("", "top", "nvidia-smi", "", "")]
    lines += [(r.what, str(r.top), str(r.smi), r.bound, "" if r.is_right else "  OFF") for r in rows]
    widths = [max(len(line[n]) for line in lines if len(line[n]) <= 48) for n in range(5)]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def main() -> int:
    """Compare in both parts. Print the tables, then the output of both programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"comma-separated, of {', '.join(PARTS)}")
    parser.add_argument("--share-points", type=float, default=5.0, help="allowed error of a share, in percentage points")
    parser.add_argument("--prefix", default=f"top-{os.getpid()}", help="prefix of the tenants' names")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, list[Row]] = {}
    pictures = []
    for part in options.parts.split(","):
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(options.library.resolve(), Path(folder), options.prefix)
            try:
                found[part], picture = PARTS[part](machine, options.share_points)
            finally:
                machine.end()
        print(f"{part.replace('-', ' ')}\n{table(found[part])}\n", flush=True)
        pictures.append(f"--- {part.replace('-', ' ')}\n{picture}")
    print("\n\n".join(pictures))
    if options.out:
        options.out.write_text(json.dumps({part: [asdict(row) for row in rows] for part, rows in found.items()}, indent=1))
    return int(any(not row.is_right for rows in found.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
