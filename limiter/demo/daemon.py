# SPDX-License-Identifier: Apache-2.0
"""The demo's node daemon: a separate `gpulimit daemon` with its own socket, metrics port and shared
memory.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from limiter import daemon_client, segment
from limiter.demo.tenants import die_with_parent
from limiter.errors import GpulimitError

STOP_TIMEOUT_S = 10.0
LINES_SHOWN = 5


class Host:
    """The daemon: started, killed and started again."""

    def __init__(self, variables: Mapping[str, str], folder: Path, *, is_simulated: bool) -> None:
        self.socket = str(folder / "hypervisor.sock")
        self.metrics_port = free_port()
        self._variables = dict(variables)
        self._log = folder / "daemon.log"
        self._state_segment = f"{segment.NAME_PREFIX}s.demo-{os.getpid()}"
        self._is_simulated = is_simulated
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def command(self) -> str:
        """Return the command as a user would type it."""
        return "gpulimit daemon" + " --sim" * self._is_simulated

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    def start(self) -> None:
        """Start the daemon; it answers a little later, see `is_ready`."""
        options = {
            "socket": self.socket,
            "metrics-addr": f"127.0.0.1:{self.metrics_port}",
            "state-dir": "",
            "state-segment": self._state_segment,
        }
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "limiter", "daemon"),
                    *(["--sim"] if self._is_simulated else []),
                    *flags,
                ],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def check(self) -> None:
        """Raise GpulimitError, with its last log lines, if the daemon has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            lines = self._log.read_text(errors="replace").splitlines()[-LINES_SHOWN:]
            raise GpulimitError("demo: the daemon has ended by itself:\n  " + "\n  ".join(lines))

    def is_ready(self) -> bool:
        """True if the daemon answers and knows the GPUs."""
        with contextlib.suppress(GpulimitError):
            return bool(self.state()["gpus"])
        return False

    def state(self) -> dict[str, Any]:
        """Return the daemon's state. Raises NoDaemon, NodeRefused."""
        return dict(daemon_client.ask("GET", "/v1/state", path=self.socket))

    def kill(self) -> None:
        """Kill the daemon, without a chance to clean up."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the daemon by SIGTERM."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def remove(self, tenants: Iterable[str]) -> None:
        """Remove the shared memory of the daemon and of its tenants, after all have ended."""
        names = [prefix + tenant for tenant in tenants for prefix in (segment.PREFIX, segment.POLICY_PREFIX)]
        lock = segment.LOCK_PREFIX + self._state_segment.removeprefix(segment.NAME_PREFIX)
        for name in (*names, self._state_segment, lock):
            (segment.DIRECTORY / name).unlink(missing_ok=True)


def free_port() -> int:
    """Return a TCP port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
