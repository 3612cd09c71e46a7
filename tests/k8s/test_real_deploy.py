# SPDX-License-Identifier: Apache-2.0
"""What is in deploy/k8s, and the webhook with exactly its own rights, before a real API server 1.20
(make test-k8s).
"""

from __future__ import annotations

import base64
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, clean_environ
from tests.daemon.conftest import eventually, free_port
from tests.k8s import parts
from tests.k8s.parts import ApiError, ControlPlane, Object

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
pytest.importorskip("cryptography", reason="needs the extra k8s")

WHY_NOT = parts.missing("etcd", "etcdctl", "kube-apiserver")
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.timeout(300)]
K8S = ROOT / "deploy/k8s"
ACCOUNT = "system:serviceaccount:gpulimit"
PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "ConfigMap": "configmaps",
    "DaemonSet": "daemonsets",
    "Deployment": "deployments",
    "Endpoints": "endpoints",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "Namespace": "namespaces",
    "NetworkPolicy": "networkpolicies",
    "Pod": "pods",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
}


def objects(*folders: str) -> list[Object]:
    paths = [
        p
        for folder in folders
        for p in sorted((K8S / folder).glob("*.yaml"))
        if p.name != "kustomization.yaml"
    ]
    found = [one for path in paths for one in yaml.safe_load_all(path.read_text()) if one]
    return sorted(found, key=lambda one: one["kind"] != "Namespace")


def create(plane: ControlPlane, item: Object, query: str = "") -> Object:
    version = item["apiVersion"]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    namespace = item["metadata"].get("namespace") or ("default" if item["kind"] == "Pod" else "")
    inside = f"/namespaces/{namespace}" if namespace else ""
    return plane.request("POST", f"{root}{inside}/{PLURALS[item['kind']]}{query}", item)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    options = ("--disable-admission-plugins=ServiceAccount", "--enable-aggregator-routing=true")
    made = ControlPlane(tmp_path_factory.mktemp("plane"), options=options)
    made.kill_api()
    made.users["tok-hook"] = (f"{ACCOUNT}:gpulimit-webhook", "accounts")
    made.users["tok-daemon"] = (f"{ACCOUNT}:gpulimit", "accounts")
    made.start_api()
    for item in objects("", "webhook"):
        create(made, item)
    yield made
    made.close()


def test_the_server_takes_the_examples(plane: ControlPlane) -> None:
    for item in objects("examples"):
        create(plane, item, "?dryRun=All")


def may(plane: ControlPlane, user: str, verb: str, resource: str, **more: str) -> bool:
    group, _, plain = resource.rpartition("/")
    attributes = {"verb": verb, "group": group, "resource": plain, **more}
    spec = {"user": f"{ACCOUNT}:{user}", "resourceAttributes": attributes}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = plane.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def test_accounts_may_do_what_they_must_and_no_more(plane: ControlPlane) -> None:
    hooks = "admissionregistration.k8s.io/mutatingwebhookconfigurations"
    assert may(plane, "gpulimit", "watch", "pods", namespace="default")
    assert may(plane, "gpulimit", "create", "events", namespace="default")
    for verb, resource in (("get", "secrets"), ("delete", "pods"), ("patch", "pods"), ("create", "pods")):
        assert not may(plane, "gpulimit", verb, resource, namespace="default"), (verb, resource)
    assert not may(plane, "gpulimit", "get", "nodes", subresource="proxy")
    assert may(plane, "gpulimit-webhook", "get", "secrets", namespace="gpulimit", name="gpulimit-webhook-tls")
    assert not may(plane, "gpulimit-webhook", "get", "secrets", namespace="gpulimit", name="other")
    assert not may(plane, "gpulimit-webhook", "create", "secrets", namespace="default")
    assert may(plane, "gpulimit-webhook", "patch", hooks, name="gpulimit")
    assert not may(plane, "gpulimit-webhook", "patch", hooks, name="other")


def own_address() -> str:
    """Return an address of this machine that an Endpoints object may have."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError as error:
            pytest.skip(f"this machine has no address but loopback: {error}")
        return str(probe.getsockname()[0])


@pytest.fixture
def webhook(plane: ControlPlane, start_process, tmp_path: Path) -> Iterator[Any]:
    """The webhook, where its Service leads; with the rights of its account alone."""
    port, address = free_port(), own_address()
    service = "/api/v1/namespaces/gpulimit/services/gpulimit-webhook"
    body = {"spec": {"selector": None, "ports": [{"name": "https", "port": 443, "targetPort": port}]}}
    plane.request("PATCH", service, body, kind="application/merge-patch+json")
    subsets = [{"addresses": [{"ip": address}], "ports": [{"name": "https", "port": port}]}]
    meta = {"name": "gpulimit-webhook", "namespace": "gpulimit"}
    create(plane, {"apiVersion": "v1", "kind": "Endpoints", "metadata": meta, "subsets": subsets})
    token = tmp_path / "token"
    token.write_text("tok-hook")
    argv = [sys.executable, "-P", "-m", "limiter", "webhook", f"--listen={address}:{port}"]
    argv += ["--service=gpulimit-webhook.gpulimit", f"--kube-api={plane.url}", f"--kube-token-file={token}"]
    process = start_process([*argv, f"--kube-ca-file={plane.ca_file}"], env=clean_environ())
    configuration = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpulimit"

    def bundle() -> str:
        assert process.poll() is None, process.stderr.read()
        return str(plane.request("GET", configuration)["webhooks"][0]["clientConfig"].get("caBundle", ""))

    eventually(bundle, within_s=60)
    yield process
    plane.request("DELETE", "/api/v1/namespaces/gpulimit/endpoints/gpulimit-webhook")


def test_the_webhook_changes_and_refuses_pods(plane: ControlPlane, webhook) -> None:
    secret = plane.request("GET", "/api/v1/namespaces/gpulimit/secrets/gpulimit-webhook-tls")
    assert base64.b64decode(secret["data"]["tls.crt"]).startswith(b"-----BEGIN CERTIFICATE")
    labels = {"gpulimit.io/webhook": "enabled"}
    create(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels}})

    def pod(name: str, **more: Any) -> Object:
        spec = {"containers": [{"name": "main", "image": "i"}], **more}
        annotations = {"gpulimit.io/memory": "25%"}
        meta = {"name": name, "namespace": "team", "annotations": annotations}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    def resources(name: str) -> Object:
        made = create(plane, pod(name), "?dryRun=All")
        return dict(made["spec"]["containers"][0]["resources"])

    # The server learns of a changed configuration within a second or so.
    expected = {"limits": {"gpulimit.io/gpu": "3"}, "requests": {"gpulimit.io/gpu": "3"}}
    eventually(lambda: resources("one") == expected, within_s=30)
    with pytest.raises(ApiError, match="hostPID"):
        create(plane, pod("two", hostPID=True))
    wrong = pod("three")
    wrong["metadata"]["annotations"] = {"gpulimit.io/memory": "much"}
    with pytest.raises(ApiError, match=r"gpulimit\.io/memory"):
        create(plane, wrong)
    elsewhere = pod("four", hostPID=True)
    elsewhere["metadata"]["namespace"] = "default"
    made = create(plane, elsewhere)
    assert "resources" not in made["spec"]["containers"][0] or not made["spec"]["containers"][0]["resources"]
    webhook.kill()
    webhook.wait(10)
    made = create(plane, pod("five", hostPID=True))
    assert not made["spec"]["containers"][0]["resources"], "without the webhook pods are made as they are"
