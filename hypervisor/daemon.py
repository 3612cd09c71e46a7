# SPDX-License-Identifier: Apache-2.0
"""Puts the daemon together, runs its parts, and ends them in order. The only file that knows them all."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import logging
import os
import platform
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from hypervisor import log
from hypervisor.api import callers
from hypervisor.api.accounts import Accounts, CallerLimits, limits_of
from hypervisor.api.fair_queue import FairQueue
from hypervisor.api.guard import SERVER_OPTIONS, guarded
from hypervisor.api.listener import ApiListener, Identify, UserOf
from hypervisor.api.request_stats import Traffic
from hypervisor.api.server import Server
from hypervisor.api.service import Api
from hypervisor.collector.collector import Collector, CollectorOptions, kind_of_reason
from hypervisor.config import settings as config
from hypervisor.config.secrets import read_process_token, read_token
from hypervisor.config.settings import Config, Settings
from hypervisor.dispatcher.dispatcher import Dispatcher, DispatcherThread
from hypervisor.entrypoint import run_program
from hypervisor.errors import ConfigError
from hypervisor.exporter import health, scrape
from hypervisor.exporter.exporter import Exporter
from hypervisor.guests.service import GuestService, KubeVirtConfig
from hypervisor.host import sd_notify as notify
from hypervisor.node.events import EventLog, note
from hypervisor.node.inventory import Inventory
from hypervisor.node.node import Node
from hypervisor.node.tenant_segments import TenantSegments
from hypervisor.nvml.client import Nvml, environment_of_child
from hypervisor.pods.controller import PodController
from hypervisor.scheduler.types import SchedulerConfig
from hypervisor.shm.fd_passing import ReadOnlyView
from hypervisor.shm.segment_store import Segments
from hypervisor.shm.segments import DIRECTORY
from limiter import about

if TYPE_CHECKING:
    from hypervisor.deviceplugin.plugin import DevicePlugin

logger = logging.getLogger(__name__)
SWEEP_S = 1.0
NICE = -10
"""Priority of the daemon: programs that keep all processors busy must not delay turns and answers."""
UNIX_BACKLOG, TCP_BACKLOG = 4096, 1024
"""Connections that wait to be accepted."""
LATE_S = 0.02
ENDING_S = 2.0
SWITCH_S = 0.0005
"""How long one thread may keep another from the interpreter; the default of 5 ms is half a turn."""


class Daemon:
    """All parts."""

    def __init__(self, told: Config, limits: CallerLimits) -> None:
        settings = told.settings
        self.config = told
        self.accounts = Accounts(limits)
        self.turns = FairQueue()
        self.listeners: list[ApiListener] = []
        self.loop = asyncio.get_running_loop()
        self.events = EventLog()
        self.rejected: Counter[str] = Counter()
        self.segments = Segments(self._set_aside)
        state = self.segments.state(settings.state_segment)
        self.arbitration = Dispatcher(
            SchedulerConfig(settings.tick, settings.quantum, settings.run_ahead),
            start_ns=time.time_ns(),
            placed=lambda name, gpus: self._from_thread(self.node.placed, name, gpus),
            broken=lambda name, reason: self._from_thread(self.node.spoiled, name, reason),
            readable=lambda name, why_not: self._from_thread(self.node.readable, name, why_not),
        )
        self.thread = DispatcherThread(self.arbitration, self._arbitration_failed)
        view = ReadOnlyView(DIRECTORY, settings.shm_read_only)
        if not view.is_read_only:
            logger.warning("no read-only mount to hand policies over by: containers' root can change its own")
        tenancy = TenantSegments(
            self.segments, self.arbitration, state, lambda *a: self.node.reaped(*a), view
        )
        self.node = Node(
            told,
            tenancy=tenancy,
            segments=self.segments,
            inventory=Inventory(state, self.events),
            events=self.events,
            operators_gid=gid_of(settings.socket_group),
        )
        if settings.kubernetes and not self.node.peers.control_groups.sees_node():
            logger.warning("the node's /sys/fs/cgroup is not mounted here: processes of pods are refused")
        self.exporter = Exporter(
            has_debug_labels=settings.metrics_debug_labels, compat=settings.metrics_compat
        )
        self.server = Server(Api(self.node, self.arbitration, lambda: self.exporter.snapshot))
        self.node.wake = self.server.wake
        self.nvml = Nvml(
            environment_of_child(is_simulated=told.is_simulated),
            sampled=self.node.sampled,
            failed=self.node.inventory.failed,
            cards_failed=self.node.inventory.take_failed,
            totals=dict(settings.gpu_memory),
            period_s=settings.nvml_interval / 1e9,
            timeout_s=settings.nvml_timeout / 1e9,
        )
        self.kubernetes = PodController(self.node, settings) if settings.kubernetes else None
        self.guests = guests_of(settings)
        self.traffic = Traffic()
        self.observer = Collector(
            self.node,
            self.arbitration,
            self.nvml,
            CollectorOptions.of(settings),
            messages=self.traffic.messages,
            registrations=self.traffic.registrations,
            longpolls=self.server.longpolls,
            rejected=self.rejected,
            publish=lambda snapshot: self.exporter.publish(
                self.guests.added_to(snapshot) if self.guests is not None else snapshot
            ),
            pods=self.kubernetes.cluster.names if self.kubernetes is not None else lambda _: None,
            kubernetes=lambda: self.kubernetes.view() if self.kubernetes is not None else None,
        )
        if self.kubernetes is not None:
            self.observer.on_collected = self.kubernetes.on_collected
        self.offer = offer_of(told, self.node, self.observer, self.kubernetes)
        self.runners: list[web.AppRunner] = []
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None

    def _set_aside(self, name: str, reason: str) -> None:
        self.rejected[kind_of_reason(reason)] += 1
        note(self.events, "segment_set_aside", f"{name}: {reason}", level=logging.WARNING)

    def _from_thread(self, call: object, *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the thread is about to
            self.loop.call_soon_threadsafe(call, *arguments)  # type: ignore[arg-type]

    def _arbitration_failed(self, error: BaseException) -> None:
        """Without arbitration the daemon is of no use: it ends, and is started again."""
        self.failure = error
        self._from_thread(self.stopping.set)

    async def run(self) -> None:
        """Run until a signal, or until a part that is needed has failed."""
        settings = self.config.settings
        self.node.survival.load()
        self.thread.start()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.nvml.run(), name="nvml"),
                    group.create_task(self._sweep(), name="sweep"),
                    group.create_task(self.observer.run(), name="observer"),
                ]
                if self.kubernetes is not None:
                    tasks.append(group.create_task(self.kubernetes.run(), name="kubernetes"))
                if self.guests is not None:
                    tasks.append(group.create_task(self.guests.run(), name="guests"))
                await self._listen()
                if self.offer is not None:
                    # After the socket is there: containers are given its folder.
                    tasks.append(group.create_task(self.offer.run(), name="device plugin"))
                notify.notify("READY=1")
                logger.info("listening on %s", settings.socket)
                await self.stopping.wait()
                notify.notify("STOPPING=1")
                for task in tasks:
                    task.cancel()
        finally:
            await self._end()
        if self.failure is not None:
            raise self.failure

    async def _listen(self) -> None:
        settings = self.config.settings
        by_address = callers.user_over_tcp, callers.over_tcp(self.accounts)
        if settings.tcp_addr:
            app = self.server.tcp_application(*tcp_tokens(settings))
            server = await self._runner(self.traffic.watch(app))
            for one in tcp_sockets(settings.tcp_addr, "tcp_addr"):
                self._start_listener(one, server, by_address, TCP_BACKLOG)
        if settings.metrics_addr:
            pages = health.application(
                reasons=self._reasons_not_ready, metrics=scrape.handler(self.exporter.page)
            )
            server = await self._runner(pages)
            for one in tcp_sockets(settings.metrics_addr, "metrics_addr"):
                self._start_listener(one, server, by_address, TCP_BACKLOG)
            warn_of_open_metrics(settings.metrics_addr)
        # Last: whoever finds the socket finds the rest.
        server = await self._runner(self.traffic.watch(self.server.unix_application()))
        account_of = callers.over_unix(self.node.peers, self.accounts, self.node.is_operator)
        by_user = callers.user_over_unix, account_of
        listener = self.node.peers.listening(unix_socket(settings.socket))
        self._start_listener(listener, server, by_user, UNIX_BACKLOG)

    async def _runner(self, app: web.Application) -> web.Server:
        timeout_s = self.config.settings.request_timeout / 1e9
        guarded(app, self.accounts, timeout_s=timeout_s)
        runner = web.AppRunner(app, shutdown_timeout=ENDING_S, handle_signals=False, **SERVER_OPTIONS)
        await runner.setup()
        self.runners.append(runner)
        assert runner.server is not None
        return runner.server

    def _start_listener(
        self, listener: socket.socket, server: web.Server, callers_by: tuple[UserOf, Identify], backlog: int
    ) -> None:
        user_of, identify = callers_by
        made = ApiListener(
            listener,
            server,
            user_of=user_of,
            identify=identify,
            turns=self.turns,
            accounts=self.accounts,
            timeout_s=self.config.settings.request_timeout / 1e9,
            refused=lambda: self.events.counts.update(["connection_refused"]),
        )
        self.listeners.append(made)
        made.start(backlog)

    def _reasons_not_ready(self) -> list[str]:
        unknown = self.kubernetes.reasons_not_ready() if self.kubernetes is not None else []
        return self.node.reasons_not_ready() or unknown or self.observer.reasons_not_ready()

    async def _sweep(self) -> None:
        """Do what is due every second."""
        watchdog_s = notify.watchdog_s()
        while True:
            await asyncio.sleep(min(SWEEP_S, watchdog_s or SWEEP_S))
            self.node.sweep(time.monotonic_ns())
            if self.kubernetes is not None:
                self.kubernetes.cluster.sweep()
            if time.monotonic_ns() - self.arbitration.stepped_at_ns < 1_000_000_000:
                notify.notify("WATCHDOG=1")

    def reread(self) -> None:
        """SIGHUP: take up the quotas of the configuration file; one that cannot be read changes nothing."""
        notify.notify("RELOADING=1")
        try:
            self.node.reread(config.reread_quotas(self.config.path))
        except ConfigError as error:
            note(self.events, "config_refused", str(error), level=logging.ERROR)
        notify.notify("READY=1")

    async def _end(self) -> None:
        """Answer who waits, stop deciding, and leave quotas and books where they are."""
        self.server.drain()
        for listener in self.listeners:
            listener.close()
        servers = [runner.server for runner in self.runners]
        for runner in self.runners:
            await runner.cleanup()
        await asyncio.sleep(LATE_S)
        for server in filter(None, servers):  # who was just being let in is not forgotten
            await server.shutdown(0)
        self.node.survival.save()
        self.node.close()
        self.arbitration.stop()
        if self.thread.ident is not None:
            await asyncio.to_thread(self.thread.join, ENDING_S)
        if not self.thread.is_alive():
            await self.node.tenancy.close()


def offer_of(
    told: Config, node: Node, observer: Collector, kubernetes: PodController | None
) -> DevicePlugin | None:
    """Return the device plugin, if it is wanted. Raises ConfigError."""
    if not told.settings.device_plugin:
        return None
    try:
        from hypervisor.deviceplugin import plugin as offer
    except ImportError as error:
        reason = f"{error.name} is missing; {about.install_command('k8s')}"
        raise ConfigError("device_plugin", "", reason) from error
    return offer.DevicePlugin(
        told, node, observer, lambda: kubernetes.cluster.pods if kubernetes is not None else ()
    )


def unix_socket(path: str) -> socket.socket:
    """Return a socket listening at `path`, which appears in one step, so that nobody meets a half-made one.

    Everybody may connect: who may do what is decided by who they are.
    """
    place = Path(path)
    fresh = place.with_name(f".{place.name}.new")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    if is_listened_on(path):
        listener.close()
        raise ConfigError(
            "socket", "", f"{path}: another daemon listens there; give this one its own --socket"
        )
    try:
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        listener.bind(str(fresh))
        fresh.chmod(0o666)
        fresh.rename(place)
    except OSError as error:
        listener.close()
        raise ConfigError("socket", "", f"{path}: {error.strerror or error}") from error
    return listener


def tcp_sockets(address: str, key: str) -> list[socket.socket]:
    """Return sockets bound to HOST:PORT, one for each address of the host. Raises ConfigError."""
    host, _, port = address.rpartition(":")
    made: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, number, _, place in dict.fromkeys(found):
            one = socket.socket(family, kind, number)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(place)
    except OSError as error:
        for one in made:
            one.close()
        reason = f"cannot listen on {address}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            reason += f"; give this daemon its own address with {config.flag_of(key)}"
        raise ConfigError(key, "", reason) from error
    return made


def is_listened_on(path: str) -> bool:
    """True if a process listens on a Unix socket, also if its queue is full."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        try:
            client.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True


def warn_of_open_metrics(address: str) -> None:
    """Say that metrics, which name tenants, can be read from other machines."""
    host = address.rpartition(":")[0].strip("[]")
    if host in ("", "0.0.0.0", "::"):  # noqa: S104
        logger.warning(
            "metrics on %s name tenants, users and commands to all machines that reach this one; "
            "--metrics-addr 127.0.0.1:PORT keeps them here",
            address,
        )


def tcp_tokens(settings: Settings) -> tuple[str, str]:
    """Return the tokens of operators and of processes; "": none of the kind. Raises ConfigError."""
    operators, processes = settings.tcp_token_file, settings.tcp_register_token_file
    key = "tcp_register_token_file"
    operator_token = read_token(operators, "tcp_token_file") if operators else ""
    process_token = read_process_token(processes, key) if processes else ""
    if operator_token == process_token:
        raise ConfigError(key, "", "has the operators' token; processes must not be operators")
    return operator_token, process_token


def gid_of(group: str) -> int | None:
    """Return a group's number. Raises ConfigError."""
    try:
        return grp.getgrnam(group).gr_gid if group else None
    except KeyError as error:
        raise ConfigError("socket_group", "", f"no group {group!r}") from error


def guests_of(settings: Settings) -> GuestService | None:
    """Return the collector of guests' metrics, if there is to be one. Raises ConfigError."""
    if not settings.guests:
        return None
    lock = str(Path(settings.socket).with_name("guest-collector.lock"))
    if settings.guests != "kubevirt":
        return GuestService(path=settings.guests, lock=lock)
    node = settings.node_name or platform.node()
    cluster = KubeVirtConfig(node, settings.kube_api, settings.kube_token_file, settings.kube_ca_file)
    return GuestService(cluster=cluster, lock=lock)


async def serve(told: Config) -> None:
    """Run a daemon."""
    limits, trouble = limits_of(told.settings.max_connections_per_user, told.settings.max_requests_per_user)
    if trouble:
        logger.warning("no more than %d descriptors: %s", limits.descriptors, trouble)
    daemon = Daemon(told, limits)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, daemon.stopping.set)
    loop.add_signal_handler(signal.SIGHUP, daemon.reread)
    await daemon.run()


def main(arguments: Sequence[str]) -> int:
    """`gpulimit daemon`."""

    def start() -> None:
        told = config.load(arguments)
        log.set_up(
            form=told.settings.log_format,
            level=told.settings.log_level,
            bytes_per_hour=told.settings.log_limit,
        )
        sys.setswitchinterval(SWITCH_S)
        with contextlib.suppress(OSError):  # where it may not, other processes can starve it
            os.setpriority(os.PRIO_PROCESS, 0, min(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
        asyncio.run(serve(told))

    return run_program("daemon", start)
