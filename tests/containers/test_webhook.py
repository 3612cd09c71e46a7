# SPDX-License-Identifier: Apache-2.0
"""`gpulimit webhook`, over TLS, and the certificate that it makes itself."""

from __future__ import annotations

import base64
import datetime
import http.client
import http.server
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import clean_environ
from tests.daemon.conftest import eventually, free_port

pytest.importorskip("cryptography", reason="needs the extra k8s")

from hypervisor.webhook import certificate as made_by

SERVICE = "gpulimit-webhook.gpulimit"
NOW = datetime.datetime.now(datetime.UTC)
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/gpulimit"
SECRETS = "/api/v1/namespaces/gpulimit/secrets"


class Webhook:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def ask(
        self, body: object, authority: Path, method: str = "POST", path: str = "/mutate"
    ) -> tuple[int, Any]:
        context = ssl.create_default_context(cafile=str(authority))
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=context)
        # Checked as the API server does it: by the name of the Service.
        sock = context.wrap_socket(
            socket.create_connection(("127.0.0.1", self.port), timeout=10), server_hostname=f"{SERVICE}.svc"
        )
        connection.sock = sock
        try:
            connection.request(method, path, raw, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, json.loads(text) if text.startswith(b"{") else text
        finally:
            connection.close()


@pytest.fixture
def webhook(start_process) -> Any:
    def start(*arguments: str) -> Webhook:
        port = free_port()
        argv = [sys.executable, "-P", "-m", "limiter", "webhook", f"--listen=127.0.0.1:{port}", *arguments]
        process = start_process(argv, env=clean_environ() | {"PYTHONWARNINGS": "error"})
        return Webhook(process, port)

    return start


def files(folder: Path, service: str = SERVICE) -> tuple[Path, Path, Path]:
    made = made_by.make(service, now=NOW)
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return folder / "tls.crt", folder / "tls.key", folder / "ca.crt"


def review(item: dict[str, Any], **request: Any) -> dict[str, Any]:
    asked = {"uid": "u1", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "n", "object": item}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked | request}


def pod(**annotations: str) -> dict[str, Any]:
    named = {f"gpulimit.io/{k}": v for k, v in annotations.items()}
    return {"metadata": {"name": "p", "annotations": named}, "spec": {"containers": [{"name": "c"}]}}


def test_pods_are_changed_and_refused_over_tls(webhook, tmp_path: Path) -> None:
    cert, key, authority = files(tmp_path)
    server = webhook(f"--cert-file={cert}", f"--key-file={key}", "--slices-per-gpu=20", "--card-memory=80GiB")
    eventually(lambda: reachable(server, authority))
    status, answer = server.ask(review(pod(memory="8GiB")), authority)
    assert status == 200 and answer["response"]["uid"] == "u1" and answer["response"]["allowed"]
    patches = json.loads(base64.b64decode(answer["response"]["patch"]))
    assert patches[-1] == {
        "op": "add",
        "path": "/spec/containers/0/resources/requests/gpulimit.io~1gpu",
        "value": "2",
    }
    _, answer = server.ask(review(pod(memory="8GX")), authority)
    assert not answer["response"]["allowed"]
    assert "gpulimit.io/memory" in answer["response"]["status"]["message"]
    _, answer = server.ask(review(pod(memory="8GX"), operation="UPDATE"), authority)
    assert answer["response"] == {"uid": "u1", "allowed": True}, "only new pods are looked at"
    debugged = pod() | {
        "spec": {
            "containers": [{"name": "c", "resources": {"limits": {"gpulimit.io/gpu": "1"}}}],
            "ephemeralContainers": [{"name": "debug", "securityContext": {"privileged": True}}],
        }
    }
    update = {"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": pod()}
    _, answer = server.ask(review(debugged, **update), authority)
    assert "container debug is privileged" in answer["response"]["status"]["message"]
    _, answer = server.ask(review(debugged, operation="UPDATE", subResource="status"), authority)
    assert answer["response"]["allowed"], "nothing else of a pod that is there"
    for nonsense in (b"{", b"[]", b"{}", b"null", b"[" * 100_000, review({}) | {"apiVersion": "v2"}):
        assert server.ask(nonsense, authority)[0] == 400
    assert server.ask(b" " * (9 << 20), authority)[0] == 413
    assert server.ask(review(pod()), authority)[1]["response"]["allowed"], "and it goes on"
    server.process.terminate()
    assert server.process.wait(10) == 0, server.process.stderr.read()


def reachable(server: Webhook, authority: Path) -> bool:
    if server.process.poll() is not None:
        pytest.fail(server.process.stderr.read())
    try:
        return server.ask(b"", authority, "GET", "/healthz")[0] == 200
    except (ConnectionError, ssl.SSLError):
        return False


def test_a_new_certificate_is_taken_up(webhook, tmp_path: Path, monkeypatch) -> None:
    from hypervisor.webhook.server import Tls

    cert, key, _ = files(tmp_path)
    tls = Tls(cert, key)
    assert not tls.refresh()
    other = tmp_path / "other"
    other.mkdir()
    for fresh, path in zip(files(other), (cert, key, tmp_path / "ca.crt"), strict=True):
        fresh.rename(path)
    assert tls.refresh() and not tls.refresh()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--cert-file=x"],
        ["--cert-file=/none", "--key-file=/none"],
        ["--service=nodot"],
        ["--service=a.b"],
    ],
)
def test_settings_that_cannot_be_used_are_refused(webhook, arguments: list[str]) -> None:
    server = webhook(*arguments)
    _, err = server.process.communicate(timeout=20)
    assert server.process.returncode == 2 and err.count("\n") == 1 and err.startswith("gpulimit webhook: ")


# ---- the certificate ----


@pytest.mark.skipif(shutil.which("openssl") is None, reason="not installed: openssl")
def test_openssl_agrees_with_the_certificate(tmp_path: Path) -> None:
    cert, _, authority = files(tmp_path)
    host = ["-verify_hostname", f"{SERVICE}.svc", "-purpose", "sslserver", "-x509_strict"]
    done = subprocess.run(
        ["openssl", "verify", "-CAfile", str(authority), *host, str(cert)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_certificate_is_renewed_in_time() -> None:
    made = made_by.make(SERVICE, now=NOW)
    assert made_by.is_good(made, SERVICE, now=NOW)
    assert not made_by.is_good(made, SERVICE, now=NOW + datetime.timedelta(days=280))
    assert not made_by.is_good(made, "other.gpulimit", now=NOW)
    assert not made_by.is_good({}, SERVICE, now=NOW)
    assert not made_by.is_good(made | {"tls.key": b"x"}, SERVICE, now=NOW)


class Store(http.server.BaseHTTPRequestHandler):
    """An API server that knows Secrets and the webhook's configuration."""

    objects: dict[str, dict[str, Any]]

    def log_message(self, *_: object) -> None: ...

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> dict[str, Any]:
        return dict(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_GET(self) -> None:
        found = self.objects.get(self.path)
        self._answer(200, found) if found else self._answer(404, {"message": "not found"})

    def do_POST(self) -> None:
        body = self._body()
        path = f"{self.path}/{body['metadata']['name']}"
        if path in self.objects:
            self._answer(409, {"message": "already exists"})
            return
        self.objects[path] = body | {"metadata": body["metadata"] | {"resourceVersion": "1"}}
        self._answer(201, self.objects[path])

    def do_PATCH(self) -> None:
        body, found = self._body(), self.objects[self.path]
        if body["metadata"].get("resourceVersion") != found["metadata"]["resourceVersion"]:
            self._answer(409, {"message": "changed meanwhile"})
            return
        version = str(int(found["metadata"]["resourceVersion"]) + 1)
        self.objects[self.path] = (
            found | body | {"metadata": found["metadata"] | {"resourceVersion": version}}
        )
        self._answer(200, self.objects[self.path])


@pytest.fixture
def store() -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    client = {"service": {"name": "gpulimit-webhook"}}
    objects = {CONFIGURATION: {"metadata": {"resourceVersion": "7"}, "webhooks": [{"clientConfig": client}]}}
    handler = type("Handler", (Store,), {"objects": objects})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", objects
    server.shutdown()
    server.server_close()


def test_two_replicas_make_one_certificate(webhook, store, tmp_path: Path) -> None:
    url, objects = store
    arguments = (f"--service={SERVICE}", f"--kube-api={url}", "--kube-token-file=", "--kube-ca-file=")
    servers = [webhook(*arguments) for _ in range(2)]
    eventually(lambda: "caBundle" in objects[CONFIGURATION]["webhooks"][0]["clientConfig"])
    authority = tmp_path / "ca.crt"
    bundle = objects[CONFIGURATION]["webhooks"][0]["clientConfig"]["caBundle"]
    authority.write_bytes(base64.b64decode(bundle))
    assert objects[f"{SECRETS}/gpulimit-webhook-tls"]["type"] == "kubernetes.io/tls"
    for server in servers:
        eventually(lambda s=server: reachable(s, authority))
        assert server.ask(review(pod(memory="10%")), authority)[1]["response"]["patchType"] == "JSONPatch"
    config = objects[CONFIGURATION]["webhooks"][0]["clientConfig"]
    assert config["service"] == {"name": "gpulimit-webhook"}, "nothing else is touched"
