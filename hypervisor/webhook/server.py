# SPDX-License-Identifier: Apache-2.0
"""Answers AdmissionReviews over TLS."""

from __future__ import annotations

import base64
import json
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from hypervisor.pods.pod import mapping, text
from hypervisor.webhook.admission import AdmissionResult, Rules, judge_debugging, review

logger = logging.getLogger(__name__)
MAX_BODY_BYTES = 8 << 20
"""An object of 1.5 MiB may come twice, and as JSON."""
API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"


def application(rules: Rules) -> web.Application:
    """Return the pages: /mutate, and /healthz for probes."""

    async def mutate(request: web.Request) -> web.Response:
        try:
            review = json.loads(await request.read())
            answer = answer_to(review, rules)
        except (ValueError, RecursionError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response(answer)

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.add_routes([web.post("/mutate", mutate), web.get("/healthz", healthz)])
    return app


def answer_to(review: Any, rules: Rules) -> dict[str, Any]:
    """Return the answer to a review. Raises ValueError for what is none."""
    request = mapping(mapping(review).get("request"))
    uid = text(request.get("uid"))
    if mapping(review).get("apiVersion") != API_VERSION or not uid:
        raise ValueError(f"this is no {KIND} of {API_VERSION}")
    verdict = verdict_on(request, rules)
    if verdict.refusal:
        where = f"{text(request.get('namespace'))}/{text(request.get('name'))}"
        logger.info("refused %s: %s", where, verdict.refusal)
    return {"apiVersion": API_VERSION, "kind": KIND, "response": {"uid": uid, **response_of(verdict)}}


def verdict_on(request: Mapping[str, Any], rules: Rules) -> AdmissionResult:
    """Return the verdict on a new pod, or on ephemeral containers for one; all else is let through."""
    item, asked = mapping(request.get("object")), (request.get("operation"), text(request.get("subResource")))
    if mapping(request.get("kind")).get("kind") != "Pod":
        return AdmissionResult()
    if asked == ("CREATE", ""):
        return review(item, rules)
    if asked == ("UPDATE", "ephemeralcontainers"):
        return judge_debugging(item, mapping(request.get("oldObject")), rules)
    return AdmissionResult()


def response_of(verdict: AdmissionResult) -> dict[str, Any]:
    if verdict.refusal:
        status: Mapping[str, Any] = {
            "code": 422,
            "reason": "Invalid",
            "message": f"gpulimit: {verdict.refusal}",
        }
        return {"allowed": False, "status": status}
    response: dict[str, Any] = {"allowed": True}
    if verdict.warnings:
        response["warnings"] = [f"gpulimit: {line}" for line in dict.fromkeys(verdict.warnings)]
    if verdict.patches:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(verdict.patches).encode()).decode()
    return response


class Tls:
    """A TLS context whose certificate follows its files: connections that begin later see the new one."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._seen: tuple[int, ...] = ()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.refresh()

    def refresh(self) -> bool:
        """Load the files if they have changed; True if they had. Raises OSError, ssl.SSLError."""
        states = [path.stat() for path in (self._certificate, self._key)]
        seen = tuple(n for state in states for n in (state.st_ino, state.st_mtime_ns))
        if seen == self._seen:
            return False
        self.context.load_cert_chain(self._certificate, self._key)
        self._seen = seen
        return True
