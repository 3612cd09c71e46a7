# SPDX-License-Identifier: Apache-2.0
"""What is shipped for guests, on a real Prometheus server that scrapes a real collector."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import StartProcess, needs_program
from tests.daemon.conftest import eventually, free_port
from tests.guests import pages
from tests.guests.pages import UUID
from tests.metrics.conftest import RULES, Prometheus
from tests.remote.exporters import exporter, page

INFO = "kubevirt_vmi_gpu_info"
pytestmark = [needs_program("prometheus", "promtool"), pytest.mark.timeout(150)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "guests.yml"),
        ("check", "config", "guests_scrape.yml"),
        ("test", "rules", "guests_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_is_content(arguments) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=RULES, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def prometheus(tmp_path: Path, start_process: StartProcess) -> Callable[..., Prometheus]:
    """Start a server with the shipped rules, their minutes made seconds, and one more page to scrape."""

    def start(collector: str, kubevirt: str) -> Prometheus:
        folder = tmp_path / "prometheus"
        folder.mkdir()
        rules = re.sub(r"for: \d+m", "for: 1s", (RULES / "guests.yml").read_text()).replace("[5m]", "[3s]")
        (folder / "guests.yml").write_text(rules)
        config = (RULES / "guests_scrape.yml").read_text()
        config = config.replace("15s", "500ms").replace("127.0.0.1:9403", collector)
        config += (
            f"  - {{job_name: kubevirt, honor_labels: true, static_configs: [{{targets: ['{kubevirt}']}}]}}\n"
        )
        (folder / "prometheus.yml").write_text(config)
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


def test_rules_and_alerts_on_a_real_server(machine, collector, prometheus) -> None:
    spoiled = pages.own(3, more='gpulimit_gpu_power_watts{gpu_uuid="GPU-x"} -5\n')
    broken = pages.own(4, status=15)
    good = machine(
        "trainer", page(pages.own(1, used=10 << 30).replace(b'"uncorrected"} 1', b'"uncorrected"} 0'))
    )
    made = [good, machine("silent", None), machine("spoiled", page(spoiled)), machine("broken", page(broken))]
    served = collector(*made)
    infos = (
        f'{INFO}{{namespace="ml",name="trainer",uuid="{UUID.format(1)}",resource="nvidia.com/A100"}} 1\n'
        f'{INFO}{{namespace="ml",pod="virt-launcher-broken-abcde",uuid="17",resource="nvidia.com/GA100"}} 1\n'
        f'DCGM_FI_PROF_SM_ACTIVE{{UUID="{UUID.format(1)}",gpu="0"}} 0.5\n'
    )
    with exporter(page(infos.encode())) as kubevirt:
        server = prometheus(served.address, kubevirt.url.removeprefix("http://").removesuffix("/metrics"))
        rules = [r for g in server.ask("/api/v1/rules")["groups"] for r in g["rules"]]
        wanted = {rule["name"] for rule in rules if rule["type"] == "recording"}
        eventually(lambda: all(server.query(name) for name in wanted), within_s=40)
        rows = server.query("vmi_gpu:gpulimit_placement:resource")
        assert {(r["metric"]["name"], r["metric"]["joined_by"], r["metric"]["resource"]) for r in rows} == {
            ("trainer", "uuid", "nvidia.com/A100"),
            ("broken", "name", "nvidia.com/GA100"),
        }
        (used,) = server.query('vmi_gpu:kubevirt_vmi_gpu_memory_used_bytes:ratio{name="trainer"}')
        assert float(used["value"][1]) == 0.25
        fired = {"GpulimitGuestDown", "GpulimitGuestGpuUnreachable", "GpulimitGuestPageSpoiled"}
        for name in (*fired, "GpulimitGuestMemoryErrors"):
            server.until_firing(name, within_s=30)
        served.guests.write_text("[")
        served.process.send_signal(signal.SIGHUP)
        server.until_firing("GpulimitGuestListStale", within_s=30)
        served.ask(good)
        for name in (*fired, "GpulimitGuestListStale", "GpulimitGuestMemoryErrors"):
            server.until_quiet(name, within_s=30)
        served.stop()
        server.until_firing("GpulimitGuestCollectorDown", within_s=30)
        kinds = {rule["name"] for rule in rules if rule["type"] == "alerting"}
        assert kinds == {
            *fired,
            "GpulimitGuestMemoryErrors",
            "GpulimitGuestListStale",
            "GpulimitGuestCollectorDown",
        }
        assert not [
            r for g in server.ask("/api/v1/rules")["groups"] for r in g["rules"] if r["health"] == "err"
        ]
