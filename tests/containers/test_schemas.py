# SPDX-License-Identifier: Apache-2.0
"""The chart by Helm, and all that deploy/ gives to Kubernetes by the schemas of three versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.containers import tools

yaml = pytest.importorskip("yaml", reason="needs PyYAML")

DEPLOY = ROOT / "deploy"
K8S, CHART = DEPLOY / "k8s", DEPLOY / "helm" / "gpulimit"
VERSIONS = ("1.30", "1.34", "1.37")
NOT_OF_KUBERNETES = {"PodMonitor", "ServiceMonitor"}
VALUES: dict[str, dict[str, Any]] = {
    "own": {},
    "everything": {
        "webhook": {"enabled": True, "cardMemory": "80GiB", "privileged": "allow", "hideOthers": "on"},
        "podMonitor": {"enabled": True},
        "imagePullSecrets": [{"name": "registry"}],
        "runtimeClassName": "nvidia",
    },
    "little": {
        "networkPolicy": {"enabled": False},
        "nodeSelector": {},
        "tolerations": [],
        "priorityClassName": "",
        "resources": {},
        "maxUnavailable": "10%",
    },
    "elsewhere": {
        "image": {"repository": "registry.example/gpulimit", "tag": "1", "pullPolicy": "Always"},
        "kubeletDir": "/var/snap/kubelet",
        "runDir": "/run/other",
        "stateDir": "/data/gpulimit",
        "options": {"hand_over": "cdi", "slices_per_gpu": 4, "merge_preload": "on"},
        "webhook": {"enabled": True, "replicas": 1, "namespaceSelector": {}, "resources": {}},
    },
    "plain": {"options": {"hand_over": "plain"}, "defaultQuota": {"memory": "512MiB"}},
}


@pytest.fixture(params=sorted(VALUES))
def values(request: pytest.FixtureRequest) -> dict[str, Any]:
    return VALUES[request.param]


def written(folder: Path, name: str, items: list[tools.Object]) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump_all(one for one in items if one["kind"] not in NOT_OF_KUBERNETES))
    return file


def test_helm_has_nothing_against_the_chart(values: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = tools.run([tools.program("helm"), "lint", "--strict", str(CHART), "--values", str(file)])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_chart_makes_is_of_kubernetes(version: str, tmp_path: Path) -> None:
    made = [written(tmp_path, name, tools.helm(CHART, values)) for name, values in VALUES.items()]
    assert tools.complaints(version, *made) == ""


@pytest.mark.parametrize("version", VERSIONS)
def test_what_kustomize_makes_is_of_kubernetes(version: str, tmp_path: Path) -> None:
    folders = {path.parent for top in (K8S, DEPLOY / "kubevirt") for path in top.rglob("kustomization.yaml")}
    made = {path: tools.kustomize(path) for path in sorted(folders)}
    assert {path.name for path, items in made.items() if items} == {
        "k8s",
        "webhook",
        "monitoring",
        "kubevirt",
    }
    others = list((K8S / "examples").glob("*.yaml"))
    assert len(others) >= 2
    files = [written(tmp_path, f"{path.parent.name}-{path.name}", items) for path, items in made.items()]
    files += [written(tmp_path, path.stem, tools.objects(path.read_text())) for path in others]
    assert tools.complaints(version, *(file for file in files if file.read_text())) == ""


@pytest.mark.parametrize("version", VERSIONS)
def test_mistakes_are_seen(version: str, tmp_path: Path) -> None:
    (made,) = (
        one for one in tools.objects((K8S / "daemonset.yaml").read_text()) if one["kind"] == "DaemonSet"
    )
    made["spec"]["template"]["spec"]["hostPid"] = True
    assert "hostPid" in tools.complaints(version, written(tmp_path, "misspelt", [made]))
    del made["spec"]["template"]["spec"]["hostPid"]
    made["spec"]["template"]["spec"]["containers"][0]["name"] = 7
    assert tools.complaints(version, written(tmp_path, "type", [made]))
