# SPDX-License-Identifier: Apache-2.0
"""What is in deploy/: it reads, says what Kubernetes understands, and promises nothing that is not there.

What Helm and Kubernetes' own schemas say of it is in test_schemas.py; `tools` has the programs.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypervisor.config import settings as config
from hypervisor.pods.pod import pod_of
from hypervisor.pods.quota import quotas_of
from release.version import version
from tests.conftest import ROOT
from tests.containers import tools
from tests.containers.tools import Object, objects

yaml = pytest.importorskip("yaml", reason="needs PyYAML")

DEPLOY = ROOT / "deploy"
K8S, CHART = DEPLOY / "k8s", DEPLOY / "helm" / "gpulimit"
KUBEVIRT = DEPLOY / "kubevirt"


def plain_files() -> Iterator[Path]:
    yield from (path for path in K8S.rglob("*.yaml") if path.name != "kustomization.yaml")


def kustomize(folder: Path) -> list[Object]:
    return tools.kustomize(folder)


def helm(values: Object | None = None) -> list[Object]:
    """Return what the chart makes with these values on top of its own."""
    return tools.helm(CHART, values)


def by_name(items: list[Object]) -> dict[tuple[str, str], Object]:
    return {(one["kind"], re.sub(r"-[a-z0-9]{10}$", "", one["metadata"]["name"])): one for one in items}


def pod_specs(items: list[Object]) -> Iterator[tuple[str, Object]]:
    for one in items:
        if one["kind"] in ("DaemonSet", "Deployment"):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]
        elif one["kind"] == "Pod":
            yield one["metadata"]["name"], one["spec"]


def of(folder: Path) -> list[Object]:
    return [
        one
        for path in folder.glob("*.yaml")
        if path.name != "kustomization.yaml"
        for one in objects(path.read_text())
    ]


def daemon_set() -> Object:
    return next(one for one in of(K8S) if one["kind"] == "DaemonSet")


# ---- as such ----


@pytest.mark.parametrize("path", list(plain_files()), ids=lambda p: p.name)
def test_every_file_is_of_objects(path: Path) -> None:
    for one in objects(path.read_text()):
        assert one["apiVersion"] and one["kind"] and one["metadata"]["name"]


FOLDERS = [K8S, K8S / "webhook", K8S / "monitoring", KUBEVIRT, KUBEVIRT / "monitoring"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: str(p.relative_to(DEPLOY)))
def test_kustomize_takes_it(folder: Path) -> None:
    made = kustomize(folder)
    images = {c["image"] for _, spec in pod_specs(made) for c in spec["containers"]}
    assert images <= {f"gpulimit:{version()}"}
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(p.name for p in folder.glob("*.yaml") if p.name != "kustomization.yaml")


def test_the_image_is_set_in_one_place(tmp_path: Path) -> None:
    """As `kustomize edit set image` does it, in a copy."""
    copy = shutil.copytree(DEPLOY, tmp_path / "deploy")
    component = copy / "image" / "kustomization.yaml"
    said = yaml.safe_load(component.read_text())
    said["images"] = [{"name": "gpulimit", "newName": "registry.example/gpulimit", "newTag": "9"}]
    component.write_text(yaml.safe_dump(said))
    made = [one for folder in ("k8s", "k8s/webhook", "kubevirt") for one in kustomize(copy / folder)]
    images = [c["image"] for _, spec in pod_specs(made) for c in spec["containers"]]
    assert images == ["registry.example/gpulimit:9"] * 3


def test_the_guests_collector_shares_nothing_with_the_daemons() -> None:
    ours, guests = by_name(kustomize(K8S) + kustomize(K8S / "webhook")), by_name(kustomize(KUBEVIRT))
    assert not ours.keys() & guests.keys()
    assert {o["metadata"].get("namespace", "gpulimit-guests") for o in guests.values()} == {"gpulimit-guests"}
    label = guests["Namespace", "gpulimit-guests"]["metadata"]["labels"]
    assert label["pod-security.kubernetes.io/enforce"] == "privileged"
    assert not any(
        o["apiVersion"].startswith("monitoring.coreos.com") for o in [*ours.values(), *guests.values()]
    )
    [subject] = guests["ClusterRoleBinding", "gpulimit-guest-collector"]["subjects"]
    assert subject["namespace"] == "gpulimit-guests"


@pytest.mark.parametrize("folder", [K8S, KUBEVIRT], ids=lambda p: p.name)
def test_network_policies_let_in_what_the_pods_serve_and_out_to_the_api_server(folder: Path) -> None:
    made = kustomize(folder)
    policy = next(one for one in made if one["kind"] == "NetworkPolicy")["spec"]
    served = {
        port["containerPort"]
        for _, spec in pod_specs(made)
        for c in spec["containers"]
        for port in c["ports"]
    }
    let_in = {port["port"] for rule in policy["ingress"] for port in rule["ports"]}
    assert served <= let_in
    let_out = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    assert {443, 6443, 8443, 16443} <= let_out


def test_the_chart_lets_out_to_the_api_server_that_is_named() -> None:
    made = by_name(helm({"networkPolicy": {"apiServerPorts": [7443]}}))
    let_out = {
        p["port"] for rule in made["NetworkPolicy", "gpulimit"]["spec"]["egress"] for p in rule["ports"]
    }
    assert let_out == {7443, 10250}


def test_the_chart_makes_what_kustomize_makes() -> None:
    expected = by_name(kustomize(K8S) + kustomize(K8S / "webhook"))
    made = by_name(helm({"webhook": {"enabled": True}}))
    del expected["Namespace", "gpulimit"]
    assert made.keys() == expected.keys()
    for key, one in made.items():
        assert comparable(one) == comparable(expected[key]), key


def comparable(item: Object) -> Object:
    """Return an object without what is bound to differ: labels, names with a hash, options' text."""
    one = yaml.safe_load(yaml.safe_dump(item))
    one["metadata"].pop("labels", None)
    one["metadata"].pop("annotations", None)
    one["metadata"]["name"] = re.sub(r"-[a-z0-9]{10}$", "", one["metadata"]["name"])
    if one["kind"] == "ConfigMap":
        one["data"] = sorted(one["data"])
    template = one.get("spec", {}).get("template", {}) if isinstance(one.get("spec"), dict) else {}
    template.pop("metadata", None)
    for volume in template.get("spec", {}).get("volumes", ()):
        if "configMap" in volume:
            volume["configMap"]["name"] = re.sub(r"-[a-z0-9]{10}$", "", volume["configMap"]["name"])
    for container in template.get("spec", {}).get("containers", ()):
        container["args"] = container["args"][:2]
    return dict(one)


def test_the_chart_s_values_are_checked() -> None:
    for wrong in (
        {"image": {"repo": "x"}},
        {"options": {"socket": "/x"}},
        {"webhook": {"privileged": "maybe"}},
    ):
        with pytest.raises(AssertionError, match="values don't meet"):
            helm(wrong)


# ---- what it says about us ----


def options_in(text: str, folder: Path) -> config.Config:
    file = folder / "gpulimit.toml"
    file.write_text(text)
    return config.load(["--config", str(file)], {})


def test_the_daemon_takes_its_options(tmp_path: Path) -> None:
    told = options_in((K8S / "gpulimit.toml").read_text(), tmp_path)
    assert told.settings.device_plugin and told.settings.kubernetes
    assert told.quotas.default.is_set, "pods that nobody gave a quota are not unlimited"
    container = daemon_set()["spec"]["template"]["spec"]["containers"][0]
    for variable in container["env"]:
        if variable["name"].startswith("GPULIMITD_") and variable["name"] != "GPULIMITD_CONFIG":
            assert variable["name"].removeprefix("GPULIMITD_").lower() in config.TABLE


@pytest.mark.parametrize(
    "values",
    [
        {"options": {"merge_preload": "on"}},
        {},
        {"options": {"hand_over": "plain", "slices_per_gpu": 4}},
        {"options": {"hand_over": "cdi"}},
    ],
)
def test_the_daemon_takes_the_chart_s_options(values: Object, tmp_path: Path) -> None:
    made = by_name(helm(values))
    text = made["ConfigMap", "gpulimit"]["data"]["gpulimit.toml"]
    told = options_in(text, tmp_path)
    assert told.settings.hand_over == tomllib.loads(text)["hand_over"]
    spec = made["DaemonSet", "gpulimit"]["spec"]["template"]["spec"]
    mounted = {m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
    assert ("/host" in mounted) == (told.settings.hand_over == "plain")
    assert (told.settings.cdi_dir in mounted) == (
        told.settings.hand_over == "cdi" or told.settings.merge_preload
    )


def test_the_daemon_has_the_paths_that_its_options_name() -> None:
    spec = daemon_set()["spec"]["template"]["spec"]
    mounts = {m["mountPath"]: m for m in spec["containers"][0]["volumeMounts"]}
    hosts = {v["name"]: v.get("hostPath", {}).get("path") for v in spec["volumes"]}
    settings = config.Settings()
    needed = (
        str(Path(settings.socket).parent),
        settings.state_dir,
        f"{settings.kubelet_dir}/device-plugins",
        f"{settings.kubelet_dir}/pod-resources",
        "/dev/shm",
    )
    for path in needed:
        assert hosts[mounts[path]["name"]] == path, (
            "the same path here and on the node: containers mount from it"
        )
    assert Path(settings.library_dir).is_relative_to(settings.state_dir)
    environment = {v["name"]: v.get("value") for v in spec["containers"][0]["env"]}
    view = mounts[environment["GPULIMITD_SHM_READ_ONLY"]]
    assert view["readOnly"] and hosts[view["name"]] == "/dev/shm"
    groups = next(m for m in mounts.values() if hosts[m["name"]] == "/sys/fs/cgroup")
    assert groups["readOnly"]
    assert groups["mountPath"] != "/sys/fs/cgroup", "there the runtime shows the daemon's own group"


def test_nobody_has_more_rights_than_he_needs() -> None:
    for name, spec in pod_specs(of(K8S) + of(K8S / "webhook")):
        assert not spec.get("hostNetwork") and not spec.get("hostIPC")
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"], name
            assert security["capabilities"]["drop"] == ["ALL"] and not security.get("privileged")
            assert set(security["capabilities"].get("add", ())) <= {"CHOWN", "DAC_OVERRIDE", "FOWNER"}
            assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]
            assert container["readinessProbe"] and container["livenessProbe"]
    for one in of(K8S) + of(K8S / "webhook"):
        for rule in one.get("rules", ()) if one["kind"] in ("Role", "ClusterRole") else ():
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            if "secrets" in rule["resources"] and one["kind"] == "ClusterRole":
                pytest.fail("Secrets of the whole cluster")


def test_an_upgrade_changes_no_file_in_use() -> None:
    strategy = daemon_set()["spec"]["updateStrategy"]
    assert strategy["type"] == "RollingUpdate" and strategy["rollingUpdate"]["maxUnavailable"]
    # That the library has a new name for each build is tested in test_cdi.py; nothing here may copy it.
    assert "initContainers" not in daemon_set()["spec"]["template"]["spec"]


def test_the_webhook_fails_open_and_only_where_it_is_wanted() -> None:
    hook = next(o for o in of(K8S / "webhook") if o["kind"] == "MutatingWebhookConfiguration")["webhooks"][0]
    assert hook["failurePolicy"] == "Ignore" and hook["timeoutSeconds"] <= 5
    assert hook["namespaceSelector"]["matchLabels"] == {"gpulimit.io/webhook": "enabled"}
    assert hook["sideEffects"] == "None" and hook["admissionReviewVersions"] == ["v1"]


@pytest.mark.parametrize("path", sorted((K8S / "examples").glob("*.yaml")), ids=lambda p: p.name)
def test_example_pods_say_what_can_be_followed(path: Path) -> None:
    asked = 0
    for item in objects(path.read_text()):
        said = quotas_of(pod_of({**item, "metadata": {"uid": "u", **item["metadata"]}}))
        assert said.problems == ()
        asked += int(item["spec"]["containers"][0]["resources"]["limits"]["gpulimit.io/gpu"])
    assert asked <= config.Settings().slices_per_gpu, "they fit on one card together"


def test_the_dockerfile_copies_what_there_is() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [
        part
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for part in line.split()[1:-1]
    ]
    assert copied and all((ROOT / part).exists() for part in copied)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    assert {f"!{part}" for part in copied} <= set(ignored)
