# SPDX-License-Identifier: Apache-2.0
"""The client of the API, against a server of our own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hypervisor.errors import ConfigError, KubeError
from hypervisor.k8s import client as client_module
from hypervisor.k8s.access import Access, api_server
from hypervisor.k8s.client import Client
from tests.k8s.conftest import Secure, certificate
from tests.k8s.fake_api import PODS, FakeApi, pod


def with_client(access: Access, work: Callable[[Client], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        async with Client(access, timeout_s=2) as client:
            return await work(client)

    return asyncio.run(run())


def test_a_long_list_comes_in_pages(fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PAGE", 3)
    for number in range(10):
        fake_api.put(pod(f"p{number}"))
    listing = with_client(Access(fake_api.url), lambda c: c.list(PODS))
    assert {item["metadata"]["name"] for item in listing.items} == {f"p{n}" for n in range(10)}
    assert listing.version == "110"
    assert len(fake_api.requests) == 4


def test_a_list_whose_pages_expire_is_begun_again(fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PAGE", 3)
    for number in range(5):
        fake_api.put(pod(f"p{number}"))

    async def expire_once(client: Client) -> Any:
        get, is_first = client.get, True

        async def compacting(path: str, query: Any = None) -> Any:
            nonlocal is_first
            page = await get(path, query)
            if is_first:
                is_first = False
                await asyncio.to_thread(fake_api.compact)
            return page

        monkeypatch.setattr(client, "get", compacting)
        return await client.list(PODS)

    assert len(with_client(Access(fake_api.url), expire_once).items) == 5


def test_the_server_s_word_is_in_the_error(fake_api: FakeApi) -> None:
    with pytest.raises(KubeError, match="status 404: pods not found") as raised:
        with_client(Access(fake_api.url), lambda c: c.get("/api/v1/namespaces/x/pods/y"))
    assert raised.value.status == 404


def test_a_server_that_is_not_there_is_an_error_without_status() -> None:
    with pytest.raises(KubeError) as raised:
        with_client(Access("http://127.0.0.1:9"), lambda c: c.get(PODS))
    assert raised.value.status == 0


def test_the_token_is_read_for_every_request(secure_api: Secure) -> None:
    access = Access(secure_api.server.url, str(secure_api.token_file), str(secure_api.ca_file))

    async def rotate(client: Client) -> None:
        await client.list(PODS)
        secure_api.server.tokens = {"second"}
        with pytest.raises(KubeError, match="401"):
            await client.list(PODS)
        secure_api.token_file.write_text("second")
        await client.list(PODS)

    with_client(access, rotate)


def test_a_server_with_another_certificate_gets_no_token(secure_api: Secure, tmp_path: Path) -> None:
    other, _ = certificate(tmp_path, "other")
    access = Access(secure_api.server.url, str(secure_api.token_file), str(other))
    with pytest.raises(KubeError, match=r"(?i)certificate"):
        with_client(access, lambda c: c.get(PODS))
    assert secure_api.server.requests == []


def test_a_new_certificate_file_is_taken_up(secure_api: Secure, tmp_path: Path) -> None:
    trusted = tmp_path / "trusted.crt"
    trusted.write_bytes(certificate(tmp_path, "other")[0].read_bytes())
    access = Access(secure_api.server.url, str(secure_api.token_file), str(trusted))

    async def renew(client: Client) -> None:
        with pytest.raises(KubeError):
            await client.get(PODS)
        trusted.write_bytes(secure_api.ca_file.read_bytes())
        await client.get(PODS)

    with_client(access, renew)


def test_a_token_is_never_sent_in_the_clear(fake_api: FakeApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    fake_api.tokens = {"secret"}
    with pytest.raises(KubeError, match="401"):
        with_client(Access(fake_api.url, str(token)), lambda c: c.get(PODS))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "not JSON"),
        (b"[]", "not an object"),
        (b'{"items": 3, "metadata": {}}', "not a list"),
        (b'{"items": [], "metadata": {"continue": "for ever"}}', "no end"),
    ],
)
def test_nonsense_is_an_error(body: bytes, words: str) -> None:
    async def run() -> None:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(body=body)

        app = web.Application()
        app.router.add_get(PODS, answer)
        runner = web.AppRunner(app, handle_signals=False)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with Client(Access(f"http://127.0.0.1:{runner.addresses[0][1]}")) as client:
                await client.list(PODS)
        finally:
            await runner.cleanup()

    with pytest.raises(KubeError, match=words):
        asyncio.run(run())


def test_the_server_s_address_is_that_of_the_environment_or_named() -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert api_server("", "", "", inside).url == "https://10.0.0.1:6443"
    assert api_server("", "", "", {"KUBERNETES_SERVICE_HOST": "fd00::1"}).url == "https://[fd00::1]:443"
    assert api_server("https://a:1/", "", "", inside).url == "https://a:1"
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_HOST"):
        api_server("", "", "", {})
