# SPDX-License-Identifier: Apache-2.0
"""Rules and dashboard for cards in parts, on a real Prometheus that scrapes a daemon with both kinds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, needs_program
from tests.metrics.conftest import RULES, Node
from tests.metrics.test_mig_vgpu import tell
from tests.metrics.test_prometheus import queries, still_missing

__all__ = ["tell"]

pytestmark = [needs_program("prometheus"), pytest.mark.timeout(120)]
DASHBOARD = ROOT / "deploy" / "grafana" / "parts.json"
MIG_CARD = "name = NVIDIA H100 80GB HBM3 (simulated)\nmemory = 81559 MiB\nmig = 1g.10gb,2g.20gb\n"
VGPU_CARD = (
    "name = NVIDIA A40 (simulated)\nmemory = 46068 MiB\ncc_major = 8\ncc_minor = 6\nvgpu = sriov\nvgpus = 2\n"
    "vgpu_policy = 2\nvgpu_arr = 1\nvgpu_overruns = 2\npci_bus = 0x70\n"
)


def test_every_panel_has_data_and_every_alert_fires_and_stops(
    node, prometheus, work, tell, tmp_path: Path
) -> None:
    profile = tmp_path / "both.profile"
    profile.write_text(f"cuda_version = 13000\n[gpu]\n{MIG_CARD}[gpu]\n{VGPU_CARD}")
    served: Node = node(env={"GPULIMIT_SIM_PROFILE": str(profile)})
    infos = served.until(lambda s: s.labels("mig_instance_info"))
    env = {"CUDA_VISIBLE_DEVICES": next(x["mig_uuid"] for x in infos if x["mig_instance"] == "0")}
    full = work("-a", "--seconds", "90", "--memory", "9200MiB", memory="10GiB", request=20, env=env)
    served.until(lambda s: s.of("mig_instance_utilization_ratio") and s.of("client_info"))
    server = prometheus(served, "parts.yml")
    tell("vgpu", 1, "license 0 3")
    server.until_firing("GpulimitVgpuUnlicensed")
    server.until_firing("GpulimitMigMemoryNearlyFull")
    missing = dict.fromkeys(queries(DASHBOARD))
    served.until(lambda _: not still_missing(server, missing), within_s=30)
    rules = (RULES / "parts.yml").read_text()
    recorded = dict.fromkeys(("recorded", name) for name in re.findall(r"record: (\S+)", rules))
    served.until(lambda _: not still_missing(server, recorded), within_s=20)
    tell("vgpu", 1, "license 0 5")
    full.kill()
    server.until_quiet("GpulimitVgpuUnlicensed")
    server.until_quiet("GpulimitMigMemoryNearlyFull")


def test_panels_have_a_number_each_and_ask_something() -> None:
    board = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) == 8
    assert all(panel["targets"] for panel in board["panels"])
    assert not [e for _, e in queries(DASHBOARD) if "$" in e]
