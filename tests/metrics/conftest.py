# SPDX-License-Identifier: Apache-2.0
"""A daemon whose metrics are read, and tenants that use the library.

- `node(…)`: starts a daemon (options as for tests/daemon's `daemon`); `node.metrics()` scrapes it.
- `work(tenant, "--seconds", …, memory="1GiB")`: a built-in workload under quota, on the daemon's machine.
- `prometheus(node)`: a real server that scrapes it every second, with copies of the shipped rules whose
  times are shortened.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import ROOT, Built, RunProcess, StartProcess, remove_segments
from tests.daemon.conftest import Daemon, daemon, daemon_env, eventually, free_port, run_dir

__all__ = ["daemon", "daemon_env", "run_dir"]

Labels = dict[str, str]
RULES = ROOT / "deploy" / "prometheus"
INTERVAL_S = 0.25
XID_PROGRAM = """
import ctypes, sys
nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
sys.exit(nvml.gpulimit_sim_xid(*map(int, sys.argv[1:])))
"""


class Scrape:
    """The samples of one page."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: list[tuple[str, Labels, float]] = [
            (s.name, s.labels, s.value) for f in text_string_to_metric_families(text) for s in f.samples
        ]

    def of(self, name: str, **labels: str) -> list[float]:
        """Return the values of a metric, its prefix left out, whose labels are these."""
        wanted = labels.items()
        return [v for n, has, v in self.samples if n == f"gpulimit_{name}" and wanted <= has.items()]

    def one(self, name: str, **labels: str) -> float | None:
        values = self.of(name, **labels)
        assert len(values) <= 1, (name, labels, values)
        return values[0] if values else None

    def labels(self, name: str) -> list[Labels]:
        return [has for n, has, _ in self.samples if n == f"gpulimit_{name}"]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Node:
    """A daemon, for its metrics."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.address = f"127.0.0.1:{daemon.metrics_port}"

    def page(self, path: str = "/metrics") -> tuple[int, str]:
        return get(f"http://{self.address}{path}")

    def metrics(self) -> Scrape:
        status, text = self.page()
        assert status == 200
        return Scrape(text)

    def until(self, check: Callable[[Scrape], Any], *, within_s: float = 10.0) -> Any:
        """Return the first true answer about a scrape."""
        return eventually(lambda: check(self.metrics()), within_s=within_s)


@pytest.fixture
def node(daemon: Callable[..., Daemon]) -> Callable[..., Node]:
    def start(*arguments: str, **options: Any) -> Node:
        options.setdefault("nvml_interval", f"{int(INTERVAL_S * 1000)}ms")
        options.setdefault("linger", "0s")
        return Node(daemon(*arguments, **options))

    return start


@pytest.fixture
def work(
    built: Built, daemon_env: dict[str, str], run_dir: Path, tenant: str, start_process: StartProcess
) -> Iterator[Callable[..., Any]]:
    """Start workloads; a tenant's name is the test's own with `name` behind it."""

    def start(
        name: str,
        *arguments: str,
        is_limited: bool = True,
        env: Mapping[str, str] | None = None,
        **quota: object,
    ) -> Any:
        more = env or {}
        variables = {f"GPULIMIT_{key.upper()}": str(value) for key, value in quota.items()}
        env = daemon_env | {
            "LD_LIBRARY_PATH": str(built.sim),
            "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
            "GPULIMIT_TENANT": f"{tenant}{name}",
            **({"LD_PRELOAD": str(built.library)} if is_limited else {}),
            **variables,
            **more,
        }
        argv = [sys.executable, "-P", "-m", "limiter", "load", *arguments]
        return start_process(argv, env=env, cwd=ROOT)

    yield start
    remove_segments(tenant)


@pytest.fixture
def xid(built: Built, daemon_env: dict[str, str], run_process: RunProcess) -> Callable[[int, int], None]:
    """Let the simulated card have an error; 79 takes it off the bus, 0 puts it back."""

    def report(index: int, number: int) -> None:
        argv = [sys.executable, "-c", XID_PROGRAM, str(index), str(number)]
        run_process(argv, env=daemon_env | {"LD_LIBRARY_PATH": str(built.sim)}, expect=0)

    return report


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **query: str) -> Any:
        status, text = get(f"{self._url}{path}?{urllib.parse.urlencode(query)}")
        answer = json.loads(text)
        assert status == 200, answer
        return answer["data"]

    def is_ready(self) -> bool:
        try:
            return get(f"{self._url}/-/ready")[0] == 200
        except OSError:
            return False

    def query(self, expression: str) -> list[Any]:
        return list(self.ask("/api/v1/query", query=expression)["result"])

    def firing(self) -> set[str]:
        return {
            a["labels"]["alertname"] for a in self.ask("/api/v1/alerts")["alerts"] if a["state"] == "firing"
        }

    def until_firing(self, name: str, *, within_s: float = 15.0) -> None:
        eventually(lambda: name in self.firing(), within_s=within_s)

    def until_quiet(self, name: str, *, within_s: float = 15.0) -> None:
        eventually(lambda: name not in self.firing(), within_s=within_s)


def shortened(text: str) -> str:
    """Return rules whose minutes are seconds: thresholds and names stay as they are shipped."""
    text = re.sub(r"for: \d+m", "for: 1s", text)
    text = re.sub(r"\[5m\]", "[3s]", text)
    return re.sub(r"< 600\b", "< 5", text)


@pytest.fixture
def prometheus(tmp_path: Path, start_process: StartProcess) -> Callable[..., Prometheus]:
    def start(node: Node, *more_rules: str) -> Prometheus:
        folder = tmp_path / "prometheus"
        folder.mkdir()
        for name in ("alerts.yml", "recording.yml", *more_rules):
            (folder / name).write_text(shortened((RULES / name).read_text()))
        config = (
            (RULES / "scrape.yml").read_text().replace("15s", "500ms").replace("127.0.0.1:9402", node.address)
        )
        listed = "".join(f"  - {name}\n" for name in ("recording.yml", *more_rules))
        (folder / "prometheus.yml").write_text(config.replace("  - recording.yml\n", listed))
        port = free_port()
        argv = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        with (folder / "log").open("w") as log:
            start_process(argv, env={"PATH": "/usr/bin:/bin"}, stdout=log, stderr=log)
        server = Prometheus(port)
        eventually(server.is_ready, within_s=20)
        return server

    return start
