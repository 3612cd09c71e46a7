# SPDX-License-Identifier: Apache-2.0
"""`gpulimit webhook`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import ssl
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from hypervisor import log
from hypervisor.config import parsers as values
from hypervisor.config import settings as config
from hypervisor.errors import ConfigError, KubeError
from hypervisor.k8s.access import api_server
from hypervisor.k8s.client import Client
from hypervisor.webhook.admission import Rules
from hypervisor.webhook.server import Tls, application
from limiter import about, quota
from limiter.errors import GpulimitError, QuotaError

logger = logging.getLogger(__name__)
LOOK_S = 10.0
"""Seconds between two checks of files, Secret and configuration."""
RETRY_S = 1.0
PREFIX = "GPULIMIT_WEBHOOK_"
T = TypeVar("T")
Step = Callable[[], Awaitable[None]]


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpulimit webhook",
        description="Change pods before they are stored: request slices if annotations set a quota.",
        epilog=f"Each option can also be set as {PREFIX}NAME in the environment.",
        allow_abbrev=False,
    )

    def option(name: str, default: str, text: str) -> None:
        variable = PREFIX + name.upper().replace("-", "_")
        shown = default or "none"
        parser.add_argument(
            f"--{name}", metavar="X", default=os.environ.get(variable, default), help=f"{text} ({shown})"
        )

    option("listen", "0.0.0.0:9443", "HOST:PORT to serve on")
    option("cert-file", "", "file with the certificate, read again when it changes")
    option("key-file", "", "file with the certificate's key")
    option("service", "", "NAME.NAMESPACE of the webhook's Service, to make and renew its certificate")
    option("secret", "gpulimit-webhook-tls", "Secret that keeps the made certificate")
    option("configuration", "gpulimit", "MutatingWebhookConfiguration that receives the made authority")
    option("resource-name", "gpulimit.io/gpu", "resource that pods request")
    option("slices-per-gpu", "10", "slices per card, as set for the daemons")
    option("card-memory", "", "memory of the cluster's cards, as 80GiB, to convert quotas in bytes to slices")
    option("privileged", "deny", "deny or allow pods with slices that can reach other cards")
    option("hide-others", "off", "on: hide all cards from containers that request none")
    option("kube-api", "", "https://HOST:PORT of the API server")
    option("kube-token-file", f"{config.ACCOUNT}/token", "file with the token for the API server")
    option("kube-ca-file", f"{config.ACCOUNT}/ca.crt", "authority of the API server's certificate")
    option("log-format", "text", "format of log lines: text or json")
    return parser


def read(parse: Callable[[str], T], value: str, key: str) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise ConfigError(f"--{key}", "", str(error)) from error


def rules_of(options: argparse.Namespace) -> Rules:
    """Return the admission rules. Raises ConfigError if an option is invalid."""
    card_bytes = None
    if options.card_memory:
        try:
            rule = quota.parse_memory(options.card_memory, source="--card-memory")[0]
        except QuotaError as error:
            raise ConfigError("--card-memory", "", str(error).partition(": ")[2]) from error
        if rule.is_share:
            raise ConfigError("--card-memory", "", "must be an amount, not a share")
        card_bytes = rule.amount
    per_gpu = read(values.number(1, 100), options.slices_per_gpu, "slices-per-gpu")
    return Rules(
        resource=options.resource_name,
        per_gpu=per_gpu,
        card_bytes=card_bytes,
        may_be_privileged=read(values.choice("deny", "allow"), options.privileged, "privileged") == "allow",
        hides_others=read(values.switch, options.hide_others, "hide-others"),
    )


async def serve(options: argparse.Namespace) -> None:
    """Serve until a signal."""
    rules = rules_of(options)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    if bool(options.cert_file) != bool(options.key_file) or bool(options.cert_file) == bool(options.service):
        raise ConfigError("--cert-file", "", "give a certificate and its key, or --service to have one made")
    if options.cert_file:
        await listen(options, rules, Path(options.cert_file), Path(options.key_file), None, stopping)
        return
    try:
        from hypervisor.webhook.certificate import CERTIFICATE, KEY, Keeper
    except ImportError as error:
        reason = f"{error.name} is missing; {about.install_command('k8s')}"
        raise ConfigError("--service", "", reason) from error
    if options.service.count(".") != 1:
        raise ConfigError("--service", "", f"{options.service!r} is not NAME.NAMESPACE")
    access = api_server(options.kube_api, options.kube_token_file, options.kube_ca_file)
    async with Client(access) as client:
        with tempfile.TemporaryDirectory(prefix="gpulimit-webhook-") as folder:
            keeper = Keeper(
                client,
                service=options.service,
                secret=options.secret,
                configuration=options.configuration,
                folder=Path(folder),
            )
            await first_step(keeper.step, stopping)
            if not stopping.is_set():
                files = (Path(folder) / CERTIFICATE, Path(folder) / KEY)
                await listen(options, rules, *files, keeper.step, stopping)


async def first_step(step: Step, stopping: asyncio.Event) -> None:
    """Retry until the certificate exists: the API server may not be up yet."""
    while not stopping.is_set():
        try:
            await step()
        except (KubeError, OSError) as error:
            logger.warning("no certificate yet: %s", error)
            await asyncio.sleep(RETRY_S)
        else:
            return


async def listen(
    options: argparse.Namespace,
    rules: Rules,
    certificate: Path,
    key: Path,
    step: Step | None,
    stopping: asyncio.Event,
) -> None:
    host, _, port = values.address(options.listen).rpartition(":")
    try:
        tls = Tls(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("--cert-file", "", str(error)) from error
    runner = web.AppRunner(application(rules), access_log=None, handle_signals=False, shutdown_timeout=5)
    await runner.setup()
    try:
        await web.TCPSite(runner, host.strip("[]"), int(port), ssl_context=tls.context).start()
        logger.info("listening on %s", options.listen)
        while not stopping.is_set():
            try:
                async with asyncio.timeout(LOOK_S):
                    await stopping.wait()
            except TimeoutError:
                await look_after(tls, step)
    finally:
        await runner.cleanup()


async def look_after(tls: Tls, step: Step | None) -> None:
    """Reload the certificate when it changes. A file that cannot be read leaves the current one in use."""
    try:
        if step is not None:
            await step()
        if tls.refresh():
            logger.info("took up a new certificate")
    except (KubeError, OSError, ssl.SSLError) as error:
        logger.warning("the certificate stays as it is: %s", error)


def main() -> int:
    options = build_parser().parse_args()
    try:
        log.set_up(form=options.log_format, level="info")
        asyncio.run(serve(options))
    except GpulimitError as error:
        print(f"gpulimit webhook: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
