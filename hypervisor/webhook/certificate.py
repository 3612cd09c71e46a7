# SPDX-License-Identifier: Apache-2.0
"""Makes the webhook's certificate if no other tool provides one.

A Secret holds it, so that all replicas use the same one. Its authority goes into the webhook's configuration,
from which the API server reads it.
"""

from __future__ import annotations

import base64
import datetime
import logging
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hypervisor.errors import KubeError
from hypervisor.k8s.client import Client

logger = logging.getLogger(__name__)
VALID = datetime.timedelta(days=365)
RENEWED_BEFORE = datetime.timedelta(days=90)
SKEW = datetime.timedelta(hours=1)
"""Certificates are valid from this long ago: clocks of other machines may be behind."""
NOT_FOUND, CONFLICT = 404, 409
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"


def make(service: str, *, now: datetime.datetime) -> dict[str, bytes]:
    """Return a new authority and its certificate for NAME.NAMESPACE, by the file names of a Secret.

    The authority's key is discarded after this one signature.
    """
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpulimit webhook")])
    usage = {
        "digital_signature": False,
        "content_commitment": False,
        "key_encipherment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "key_cert_sign": True,
        "crl_sign": True,
        "encipher_only": False,
        "decipher_only": False,
    }
    authority = (
        builder(issuer, issuer, authority_key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    names = [f"{service}.svc", f"{service}.svc.cluster.local", service]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    certificate = (
        builder(subject, issuer, key, now)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {
        CERTIFICATE: certificate.public_bytes(serialization.Encoding.PEM),
        KEY: key.private_bytes(serialization.Encoding.PEM, *form),
        AUTHORITY: authority.public_bytes(serialization.Encoding.PEM),
    }


def builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + VALID)
    )


def is_good(files: dict[str, bytes], service: str, *, now: datetime.datetime) -> bool:
    """True if a certificate names the service and stays valid for RENEW_BEFORE."""
    try:
        certificate = x509.load_pem_x509_certificate(files[CERTIFICATE])
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        serialization.load_pem_private_key(files[KEY], None)
        x509.load_pem_x509_certificate(files[AUTHORITY])
    except (KeyError, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return f"{service}.svc" in names.get_values_for_type(x509.DNSName) and (
        certificate.not_valid_after_utc - now > RENEWED_BEFORE
    )


class Keeper:
    """Keeps Secret, webhook configuration and the files in `folder` consistent."""

    def __init__(
        self, client: Client, *, service: str, secret: str, configuration: str, folder: Path
    ) -> None:
        self._client = client
        self._service = service
        namespace = service.partition(".")[2]
        self._secrets = f"/api/v1/namespaces/{namespace}/secrets"
        self._secret = secret
        kind = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        self._configuration = f"{kind}/{configuration}"
        self._folder = folder

    async def step(self) -> None:
        """Make the certificate if it is missing or expires soon; write the files and update the
        configuration.

        Raises KubeError if the API server fails, OSError if a file cannot be written.
        """
        now = datetime.datetime.now(datetime.UTC)
        version, files = await self._read()
        if not is_good(files, self._service, now=now):
            await self._write(make(self._service, now=now), version)
            # Another replica may have stored its own first. The stored certificate is the one in use.
            _, files = await self._read()
        for name in (CERTIFICATE, KEY):
            write(self._folder / name, files[name])
        await self._tell(base64.b64encode(files[AUTHORITY]).decode())

    async def _read(self) -> tuple[str | None, dict[str, bytes]]:
        try:
            secret = await self._client.get(f"{self._secrets}/{self._secret}")
        except KubeError as error:
            if error.status != NOT_FOUND:
                raise
            return None, {}
        data = secret.get("data") or {}
        version = str(secret.get("metadata", {}).get("resourceVersion", ""))
        return version, {name: base64.b64decode(str(value)) for name, value in data.items()}

    async def _write(self, files: dict[str, bytes], version: str | None) -> None:
        data = {name: base64.b64encode(content).decode() for name, content in files.items()}
        try:
            if version is None:
                meta = {"name": self._secret, "labels": {"app.kubernetes.io/name": "gpulimit"}}
                await self._client.create(
                    self._secrets,
                    {
                        "apiVersion": "v1",
                        "kind": "Secret",
                        "metadata": meta,
                        "type": "kubernetes.io/tls",
                        "data": data,
                    },
                )
            else:
                path = f"{self._secrets}/{self._secret}"
                await self._client.patch(path, {"metadata": {"resourceVersion": version}, "data": data})
        except KubeError as error:
            if error.status != CONFLICT:
                raise
            return  # another replica has stored it first
        logger.info("made a certificate for %s.svc, valid for %d days", self._service, VALID.days)

    async def _tell(self, bundle: str) -> None:
        found = await self._client.get(self._configuration)
        webhooks: list[dict[str, Any]] = list(found.get("webhooks") or [])
        if all(one.get("clientConfig", {}).get("caBundle") == bundle for one in webhooks):
            return
        for one in webhooks:
            one.setdefault("clientConfig", {})["caBundle"] = bundle
        version = found.get("metadata", {}).get("resourceVersion")
        body = {"metadata": {"resourceVersion": version}, "webhooks": webhooks}
        await self._client.patch(self._configuration, body)
        logger.info("told the API server whom to trust")


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically; only its owner can read it."""
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_bytes(content)
    fresh.rename(path)
