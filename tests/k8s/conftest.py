# SPDX-License-Identifier: Apache-2.0
"""API servers for tests: `fake_api`, and `secure_api` that speaks TLS and wants a token."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.k8s.fake_api import FakeApi


@pytest.fixture
def fake_api() -> Iterator[FakeApi]:
    """An API server without TLS; ends with the test."""
    server = FakeApi()
    yield server
    server.close()


@dataclass(frozen=True)
class Secure:
    """An API server with TLS, and the files that a pod has."""

    server: FakeApi
    token_file: Path
    ca_file: Path


def certificate(folder: Path, name: str = "localhost") -> tuple[Path, Path]:
    """Make a key and a certificate that signs itself; return certificate and key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                f"/CN={name}",
            ),
            *("-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return cert, key


@pytest.fixture
def secure_api(tmp_path: Path) -> Iterator[Secure]:
    cert, key = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    server = FakeApi(tls=tls)
    server.tokens = {"first"}
    token_file = tmp_path / "token"
    token_file.write_text("first\n")
    yield Secure(server, token_file, cert)
    server.close()
