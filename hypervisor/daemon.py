# SPDX-License-Identifier: Apache-2.0
"""Builds the daemon's components, runs them, and ends them in order. Only this file knows all of them.

Each component gets its dependencies in its constructor. A component that is off is an object that does
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import grp
import logging
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hypervisor import log
from hypervisor.api.accounts import CallerLimits, limits_of
from hypervisor.api.endpoints import Endpoints
from hypervisor.api.request_stats import RequestStats
from hypervisor.api.server import Server
from hypervisor.api.service import Api
from hypervisor.collector.collector import Collector, CollectorOptions
from hypervisor.config import settings as config
from hypervisor.config.settings import Config, Settings
from hypervisor.deviceplugin.disabled import NoDevicePlugin
from hypervisor.dispatcher.dispatcher import Dispatcher, DispatcherThread
from hypervisor.entrypoint import run_program
from hypervisor.errors import ConfigError
from hypervisor.exporter import health, scrape
from hypervisor.exporter.exporter import Exporter
from hypervisor.guests.disabled import NoGuests
from hypervisor.guests.service import GuestService, KubeVirtConfig
from hypervisor.host import sd_notify as notify
from hypervisor.model import Admission
from hypervisor.node.authorization import Authorization
from hypervisor.node.dispatcher_reports import DispatcherReports
from hypervisor.node.events import EventLog, record_event
from hypervisor.node.gpu_updates import GpuUpdates
from hypervisor.node.inventory import Inventory
from hypervisor.node.node import Node
from hypervisor.node.quota_policy import QuotaSources
from hypervisor.node.registration import Registrar
from hypervisor.node.registry import Registry
from hypervisor.node.rejected_segments import RejectedSegments
from hypervisor.node.segment_health import SegmentHealth
from hypervisor.node.tenant_bounds import TenantBounds
from hypervisor.node.tenant_segments import TenantSegments
from hypervisor.nvml.client import Nvml, environment_of_child
from hypervisor.pods.controller import PodController
from hypervisor.pods.disabled import NoKubernetes
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
MAX_JOIN_S = 2.0
"""Longest wait for the dispatcher thread to end."""
SWITCH_S = 0.0005
"""Longest time for which one thread keeps the interpreter; Python's default of 5 ms is half a turn."""


class Daemon:
    """All components. Each is built from those above it."""

    def __init__(self, told: Config, limits: CallerLimits) -> None:
        settings = told.settings
        self.config = told
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None
        events = EventLog()
        rejected = RejectedSegments(events)
        segments = Segments(rejected.set_aside)
        state = segments.state(settings.state_segment)
        registry = registry_of(told)
        inventory = Inventory(state, events)
        segment_health = SegmentHealth(events)
        self.reports = DispatcherReports(asyncio.get_running_loop(), registry, inventory, segment_health)
        self.dispatcher = Dispatcher(
            SchedulerConfig(settings.tick, settings.quantum, settings.run_ahead, settings.gang_quantum),
            start_ns=time.time_ns(),
            placed=self.reports.moved,
            broken=self.reports.corrupt,
            readable=self.reports.readable,
        )
        self.thread = DispatcherThread(self.dispatcher, self._dispatcher_failed)
        self.node = Node(
            settings,
            registry=registry,
            inventory=inventory,
            segments=segments,
            tenant_segments=TenantSegments(
                segments, self.dispatcher, state, read_only_view(settings), events
            ),
            health=segment_health,
            events=events,
            authorization=Authorization(
                operators_gid=gid_of(settings.socket_group), is_in_cluster=settings.kubernetes
            ),
        )
        self.pods = pods_of(settings, self.node)
        self.nvml = nvml_of(told, self.node, self.pods)
        self.plugin = plugin_of(told, self.node, self.nvml, self.pods)
        self.guests = guests_of(settings)
        registrar = Registrar(
            self.node, before_register=self.plugin.before_register, resolve_pod=self.pods.resolve_pod
        )
        exporter = Exporter(has_debug_labels=settings.metrics_debug_labels, compat=settings.metrics_compat)
        request_stats = RequestStats()
        self.collector = Collector(
            self.node,
            self.dispatcher,
            self.nvml,
            CollectorOptions.of(settings),
            pods=self.pods,
            plugin=self.plugin,
            messages=request_stats.messages,
            registrations=request_stats.registrations,
            rejected=rejected.counts,
            add_guests=self.guests.added_to,
            publish=exporter.publish,
        )
        self.endpoints = Endpoints(
            settings,
            self.node,
            Server(Api(self.node, registrar, self.dispatcher, exporter)),
            limits,
            stats=request_stats,
            metrics=health.application(reasons=self.reasons_not_ready, metrics=scrape.handler(exporter.page)),
        )

    def _dispatcher_failed(self, error: BaseException) -> None:
        """End the daemon, to be started again: without a dispatcher it is of no use. Any thread."""
        self.failure = error
        self.reports.on_loop(self.stopping.set)

    async def run(self) -> None:
        """Run until a signal, or until a required component has failed."""
        self.node.recovery.load()
        self.thread.start()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.nvml.run(), name="nvml"),
                    group.create_task(self._sweep(), name="sweep"),
                    group.create_task(self.collector.run(), name="collector"),
                    group.create_task(self.pods.run(), name="kubernetes"),
                    group.create_task(self.guests.run(), name="guests"),
                ]
                await self.endpoints.open()
                # Only now that the socket exists: containers get its folder.
                tasks.append(group.create_task(self.plugin.run(), name="device plugin"))
                notify.notify("READY=1")
                logger.info("listening on %s", self.config.settings.socket)
                await self.stopping.wait()
                notify.notify("STOPPING=1")
                for task in tasks:
                    task.cancel()
        finally:
            await self._end()
        if self.failure is not None:
            raise self.failure

    def reasons_not_ready(self) -> list[str]:
        """Return the reasons of the first component that does not work; empty if all work."""
        return (
            self.node.reasons_not_ready()
            or self.pods.reasons_not_ready()
            or self.collector.reasons_not_ready()
        )

    async def _sweep(self) -> None:
        """Run the periodic work, once a second."""
        watchdog_s = notify.watchdog_s()
        while True:
            await asyncio.sleep(min(SWEEP_S, watchdog_s or SWEEP_S))
            self.node.sweep(time.monotonic_ns())
            self.pods.sweep()
            if time.monotonic_ns() - self.dispatcher.stepped_at_ns < 1_000_000_000:
                notify.notify("WATCHDOG=1")

    def reread(self) -> None:
        """Handle SIGHUP: read the quotas of the configuration file. After a failure nothing changes."""
        notify.notify("RELOADING=1")
        try:
            self.node.quotas.reread(config.reread_quotas(self.config.path))
        except ConfigError as error:
            record_event(self.node.events, "config_refused", str(error), level=logging.ERROR)
        notify.notify("READY=1")

    async def _end(self) -> None:
        """Answer open requests, stop deciding, and leave quotas and segments where they are."""
        await self.endpoints.close()
        self.node.recovery.save()
        self.node.recovery.store.close()
        self.node.exits.close()
        self.dispatcher.stop()
        if self.thread.ident is not None:
            await asyncio.to_thread(self.thread.join, MAX_JOIN_S)
        if not self.thread.is_alive():
            await self.node.tenant_segments.close()


def registry_of(told: Config) -> Registry:
    """Return an empty registry with the bounds and quotas of the configuration."""
    settings = told.settings
    sources = QuotaSources(admission=cast(Admission, settings.admission))
    sources.default, sources.config = told.quotas.default, told.quotas.tenants
    return Registry(
        sources,
        boot=os.urandom(4).hex(),
        overcommit_percent=settings.memory_overcommit,
        bounds=TenantBounds(
            settings.max_tenants, settings.max_tenants_per_user, settings.max_processes_per_user
        ),
    )


def read_only_view(settings: Settings) -> ReadOnlyView:
    """Return the read-only view through which policies are passed to processes. Raises ConfigError."""
    view = ReadOnlyView(DIRECTORY, settings.shm_read_only)
    if not view.is_read_only:
        logger.warning("no read-only mount to hand policies over by: containers' root can change its own")
    return view


def pods_of(settings: Settings, node: Node) -> PodController | NoKubernetes:
    """Return the link to the cluster. Raises ConfigError."""
    if not settings.kubernetes:
        return NoKubernetes()
    if not node.peers.control_groups.sees_node():
        logger.warning("the node's /sys/fs/cgroup is not mounted here: processes of pods are refused")
    return PodController(node, settings)


def nvml_of(told: Config, node: Node, pods: PodController | NoKubernetes) -> Nvml:
    """Return the client of NVML. It brings each answer to the node, and adopted tenants to their pods."""
    settings = told.settings
    return Nvml(
        environment_of_child(is_simulated=told.is_simulated),
        sampled=GpuUpdates(node, pods.on_adopted).on_nvml_sample,
        failed=node.inventory.on_nvml_failure,
        cards_failed=node.inventory.update_failed_cards,
        totals=dict(settings.gpu_memory),
        period_s=settings.nvml_interval / 1e9,
        timeout_s=settings.nvml_timeout / 1e9,
    )


def plugin_of(
    told: Config, node: Node, nvml: Nvml, pods: PodController | NoKubernetes
) -> DevicePlugin | NoDevicePlugin:
    """Return the device plugin. Raises ConfigError."""
    if not told.settings.device_plugin:
        return NoDevicePlugin()
    try:
        from hypervisor.deviceplugin import plugin
    except ImportError as error:
        reason = f"{error.name} is missing; {about.install_command('k8s')}"
        raise ConfigError("device_plugin", "", reason) from error
    return plugin.DevicePlugin(told, node, nvml, pods.known_pods)


def guests_of(settings: Settings) -> GuestService | NoGuests:
    """Return the collector of guests' metrics. Raises ConfigError."""
    if not settings.guests:
        return NoGuests()
    lock = str(Path(settings.socket).with_name("guest-collector.lock"))
    if settings.guests != "kubevirt":
        return GuestService(path=settings.guests, lock=lock)
    node = settings.node_name or platform.node()
    cluster = KubeVirtConfig(node, settings.kube_api, settings.kube_token_file, settings.kube_ca_file)
    return GuestService(cluster=cluster, lock=lock)


def gid_of(group: str) -> int | None:
    """Return a group's number; None if no group is named. Raises ConfigError."""
    try:
        return grp.getgrnam(group).gr_gid if group else None
    except KeyError as error:
        raise ConfigError("socket_group", "", f"no group {group!r}") from error


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
        with contextlib.suppress(OSError):  # without the right to do so, other processes can starve it
            os.setpriority(os.PRIO_PROCESS, 0, min(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
        gc.collect()
        gc.freeze()  # what is here stays: searches for garbage need not look at it, and stop the daemon less
        asyncio.run(serve(told))

    return run_program("daemon", start)
