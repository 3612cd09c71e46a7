# SPDX-License-Identifier: Apache-2.0
"""`gpulimit guest-agent`: serves the metrics of a virtual machine's GPUs to its host.

A child process that can be killed calls NVML, as in the daemon. Without a driver the agent keeps running,
reports the error, and finds the driver once it is loaded.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import platform
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from hypervisor import log
from hypervisor.config.secrets import read_token
from hypervisor.entrypoint import run_program
from hypervisor.errors import ConfigError
from hypervisor.exporter import health, scrape
from hypervisor.exporter.exporter import Exporter
from hypervisor.guests.listener import listen, only_host
from hypervisor.guests.options import AgentSettings, load
from hypervisor.host import sd_notify as notify
from hypervisor.metrics.gpus import GpuObservation, gpu_view
from hypervisor.metrics.snapshot import GpuView, Snapshot
from hypervisor.model import GpuSample
from hypervisor.nvml.client import Nvml, environment_of_child
from hypervisor.scraper.endpoint import endpoint_of
from limiter import about

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
PREFIX = "GPULIMIT_AGENT_"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
OF_THE_NODE = frozenset(
    (
        "gpu_unregistered_process_count",
        "gpu_compute_requested_ratio",
        "gpu_memory_reserved_bytes",
        "gpu_compute_unallocated_ratio",
    )
)
"""Metrics about quotas. A guest has no quotas, so its page leaves them out."""
NOT_YET, TIMEOUT, LOST, UNKNOWN = 1, 10, 15, 999
"""NVML's error numbers; the first is NVML_ERROR_UNINITIALIZED: NVML has not been asked yet."""
CODES = {"timeout": TIMEOUT, "ended": UNKNOWN, "nonsense": UNKNOWN}
"""NVML's error number for each failure of the child process."""
MIN_FRESH_S, FRESH_PERIODS = 6.0, 3


class Agent:
    """NVML's last answer, rendered as pages."""

    def __init__(self, settings: AgentSettings, *, is_simulated: bool) -> None:
        self._settings = settings
        self._samples: dict[str, GpuSample] = {}
        self.exporter = Exporter()
        self.nvml = Nvml(
            environment_of_child(is_simulated=is_simulated),
            sampled=self._sampled,
            failed=lambda _: self.publish(),
            period_s=settings.nvml_interval / 1e9,
            timeout_s=settings.nvml_timeout / 1e9,
        )
        self.publish()

    def _sampled(self, samples: tuple[GpuSample, ...]) -> None:
        for sample in samples:
            self._samples[sample.gpu.uuid] = sample
        self.publish()

    def status(self) -> tuple[int, str]:
        """Return number and text of the current error of NVML or of a GPU; 0 if there is none."""
        code, reason = self.nvml_status()
        if code:
            return code, reason
        for card in self.nvml.health.failed:
            return LOST if card.is_lost else UNKNOWN, f"GPU {card.index} {card.uuid}: {card.error}"
        for sample in self._samples.values():
            if sample.is_lost or sample.gpu.uuid not in self.nvml.health.listed:
                return LOST, f"GPU {sample.gpu.index} ({sample.gpu.uuid}) is lost"
            if sample.error:
                return UNKNOWN, f"GPU {sample.gpu.index} ({sample.gpu.uuid}): {sample.error}"
        return 0, ""

    def nvml_status(self) -> tuple[int, str]:
        """Return number and text of the error that keeps NVML from answering; 0 if it answers."""
        told = self.nvml.health
        code, reason = told.failure
        if code:
            return CODES.get(code) or (int(code) if code.isdecimal() else UNKNOWN), reason
        silence_s = self.nvml.silence_s()
        if silence_s is None:
            return NOT_YET, "NVML has not answered yet"
        if silence_s > max(MIN_FRESH_S, FRESH_PERIODS * self._settings.nvml_interval / 1e9):
            return TIMEOUT, f"NVML has not answered for {silence_s:.0f} s"
        return 0, ""

    def gpus(self) -> list[GpuView]:
        """Return all GPUs ever seen. Values that NVML has not reported lately are None."""
        is_fresh, listed = self.nvml_status()[0] == 0, self.nvml.health.listed
        return [
            gpu_view(
                GpuObservation(sample, is_fresh=is_fresh, is_listed=sample.gpu.uuid in listed),
                (),
                frozenset(),
            )
            for sample in self._samples.values()
        ]

    def publish(self) -> None:
        """Render the pages from the current values."""
        views = tuple(of_a_guest(view) for view in self.gpus())
        names = {"version": about.version(), "boot_id": boot_id()}
        self.exporter.publish(
            Snapshot(
                gpus=views,
                values={
                    "guest_agent_status": self.status()[0],
                    "nvml_up": int(self.nvml_status()[0] == 0),
                    "gpus_failed": len(self.nvml.health.failed),
                },
                agent=names,
                build={"version": about.version(), "python_version": platform.python_version()},
            )
        )

    def page(self, accept: str, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
        return self.exporter.page(accept, accept_encoding)

    def reasons_not_ready(self) -> list[str]:
        code, reason = self.status()
        return [f"NVML error {code}: {reason}"] if code else []

    def document(self) -> dict[str, Any]:
        """Return the same as JSON: version, error, devices."""
        code, reason = self.status()
        at_ns = self.nvml.health.last_success_at_ns
        return {
            "version": 1,
            "error": {"code": code, "message": reason},
            "agent": {"version": about.version(), "boot_id": boot_id()},
            "sampled_at": None if at_ns is None else at_ns / 1e9,
            "devices": [device_of(view) for view in self.gpus()],
        }

    async def run(self) -> None:
        """Ask NVML until cancelled. The pages are also rendered when NVML's silence becomes a failure."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.nvml.run(), name="nvml")
            while True:
                await asyncio.sleep(1.0)
                if self.status()[0]:
                    self.publish()


def of_a_guest(view: GpuView) -> GpuView:
    values = {name: value for name, value in view.values.items() if name not in OF_THE_NODE}
    return GpuView(
        view.uuid,
        view.index,
        view.name,
        view.driver_version,
        is_lost=view.is_lost,
        values=values,
        clocks_hertz=view.clocks_hertz,
        ecc_errors=view.ecc_errors,
        throttle_reasons=view.throttle_reasons,
    )


def device_of(view: GpuView) -> dict[str, Any]:
    """Return a GPU for JSON; null if not known."""

    def of(name: str, scale: float = 1.0) -> float | None:
        value = view.values.get(f"gpu_{name}")
        return None if value is None else value * scale

    def whole(name: str) -> int | None:
        value = of(name)
        return None if value is None else round(value)

    return {
        "index": view.index,
        "uuid": view.uuid,
        "name": view.name,
        "driver_version": view.driver_version,
        "is_lost": view.is_lost,
        "utilization_percent": of("utilization_ratio", 100),
        "memory_utilization_percent": of("memory_utilization_ratio", 100),
        "memory_used_bytes": whole("memory_used_bytes"),
        "memory_total_bytes": whole("memory_total_bytes"),
        "temperature_celsius": of("temperature_celsius"),
        "power_usage_milliwatts": of("power_watts", 1000),
        "ecc_errors_single_bit_total": view.ecc_errors.get("corrected"),
        "ecc_errors_double_bit_total": view.ecc_errors.get("uncorrected"),
        "encoder_utilization_percent": of("encoder_utilization_ratio", 100),
        "decoder_utilization_percent": of("decoder_utilization_ratio", 100),
        "running_processes": whole("process_count"),
    }


def boot_id() -> str:
    """Return an id that changes at each start of the machine; empty if not known."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def application(agent: Agent, settings: AgentSettings) -> web.Application:
    """Return the pages."""

    async def gpus(_: web.Request) -> web.Response:
        return web.json_response(agent.document())

    app = health.application(reasons=agent.reasons_not_ready, metrics=scrape.handler(agent.page))
    app.router.add_get("/v1/gpus", gpus)
    if settings.vsock_peers == "host":
        only_host(app)
    if settings.token_file:
        app.middlewares.append(bearer(read_token(settings.token_file, "token_file")))
    return app


def bearer(token: str) -> Any:
    """Return a middleware that requires a token, except for the liveness call."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if request.path != "/healthz" and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise web.HTTPUnauthorized(text="the token is missing\n", headers={"WWW-Authenticate": "Bearer"})
        return await handler(request)

    return check


def tls_of(settings: AgentSettings) -> ssl.SSLContext | None:
    """Return the TLS context, or None if TLS is off. Raises ConfigError."""
    if not settings.tls_cert and not settings.tls_key:
        return None
    if not settings.tls_cert or not settings.tls_key:
        raise ConfigError("tls_cert", "", "needs tls_key, and the other way round")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("tls_cert", "", f"{settings.tls_cert}, {settings.tls_key}: {error}") from error
    return context


async def serve(settings: AgentSettings, *, is_simulated: bool) -> None:
    """Serve until a signal arrives. Raises ConfigError."""
    places = [endpoint_of(part.strip(), is_listening=True) for part in settings.listen.split(",")]
    tls = tls_of(settings)
    agent = Agent(settings, is_simulated=is_simulated)
    runner = web.AppRunner(application(agent, settings), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    servers: list[asyncio.Server] = []
    try:
        servers += [await listen(runner, place, tls) for place in places]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(agent.run(), name="agent")
            notify.notify("READY=1")
            await stopping.wait()
            task.cancel()
    finally:
        for server in servers:
            server.close()
        await runner.cleanup()


def main(arguments: Sequence[str]) -> int:
    """`gpulimit guest-agent`."""
    parser = argparse.ArgumentParser(
        prog="gpulimit guest-agent",
        description="Serve this machine's GPU metrics to its host: /metrics, /v1/gpus, /healthz, /readyz.",
        allow_abbrev=False,
    )
    parser.add_argument("--sim", action="store_true", help="watch the simulated driver's GPUs")

    def start() -> None:
        settings, options = load(AgentSettings, parser, PREFIX, arguments)
        log.set_up(form=settings.log_format, level=settings.log_level)
        asyncio.run(serve(settings, is_simulated=options.sim))

    return run_program("guest-agent", start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
