# SPDX-License-Identifier: Apache-2.0
"""The daemon's options: one table defines the flags, environment variables, file keys and help.

Flag > GPULIMITD_* > TOML file > default. A key outside the table is refused, so that a typing error never
silently selects a default. The file may also hold quotas: [tenants.NAME], and [default] for tenants without a
quota of their own.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from hypervisor.config.parsers import (
    address,
    amounts_by_card,
    choice,
    choices,
    duration,
    number,
    size,
    switch,
    url,
)
from hypervisor.errors import ConfigError
from hypervisor.model import NO_QUOTA, Admission
from limiter import paths, quota
from limiter.errors import QuotaError
from limiter.quota import GangMode, Quota
from limiter.segment import STATE_NAME, TENANT

PREFIX = "GPULIMITD_"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
QUOTA_KEYS = {
    key: f"GPULIMIT_{key.upper()}"
    for key in ("memory", "compute", "request", "weight", "priority", "memory_wait", "gang")
}


def option(parse: Callable[[str], Any], default: str, reason: str) -> Any:
    """Return one row of the table. `default` is text and parsed like any other value."""
    return field(default=parse(default), metadata={"parse": parse, "default": default, "reason": reason})


@dataclass(frozen=True, slots=True)
class Settings:
    """All options. Durations are in nanoseconds; as text they have units, as in 2ms."""

    socket: str = option(
        str, paths.DAEMON_SOCKET, "Unix socket of the daemon, for limited programs and for commands"
    )
    socket_group: str = option(str, "", "group whose members may change quotas, in addition to root")
    metrics_addr: str = option(
        address, "0.0.0.0:9402", "HOST:PORT of /metrics, /healthz, /readyz; empty: off"
    )
    metrics_compat: tuple[str, ...] = option(
        choices("k8s-vgpu-monitor", "nvshare", "all-smi"),
        "",
        "comma-separated exporters, under whose names the same values are also served: k8s-vgpu-monitor, "
        "nvshare, all-smi",
    )
    metrics_debug_labels: bool = option(
        switch, "off", "on: one series per process, with client_id and host_pid"
    )
    metrics_stale_ttl: int = option(
        duration("0s", "300s"),
        "300s",
        "time for which the last values of an unreadable usage segment are served",
    )
    metrics_ratio_file: str = option(
        str, "", "file with the number of tenants that share a card, for cards without quotas"
    )
    nvml_interval: int = option(
        duration("100ms", "30s"),
        "1s",
        "time between two readings of NVML and of the tenants' usage for metrics",
    )
    log_format: str = option(choice("text", "json"), "text", "format of log lines: text, or json")
    log_level: str = option(
        choice("debug", "info", "warning", "error"), "info", "lowest level that is logged"
    )
    log_limit: int = option(
        size("64KiB", "1GiB"), "1MiB", "largest number of logged bytes per hour; debug lines do not count"
    )
    max_tenants: int = option(
        number(1, 120), "120", "largest number of tenants; the last quarter is for users without a tenant"
    )
    max_tenants_per_user: int = option(
        number(1, 120), "32", "largest number of tenants per user; root has no bound"
    )
    max_processes_per_user: int = option(
        number(1, 65536), "1024", "largest number of registered processes per user; root has no bound"
    )
    max_connections_per_user: int = option(
        number(1, 65536),
        "2048",
        "largest number of connections per user, at most a quarter of all; operators have no bound",
    )
    max_requests_per_user: int = option(
        number(1, 100000),
        "200",
        "requests per user and second, averaged over ten seconds; more are delayed; operators have no bound",
    )
    request_timeout: int = option(
        duration("1s", "5m"), "10s", "time for a client to send a request, and to read the answer"
    )
    tick: int = option(
        duration("500us", "50ms"),
        "2ms",
        "time between two readings of busy tenants; a shorter one costs CPU time",
    )
    quantum: int = option(
        duration("1ms", "100ms"),
        "10ms",
        "GPU time of one turn; a longer one wastes less, a shorter one answers sooner",
    )
    gang_quantum: int = option(
        duration("10ms", "1s"),
        "100ms",
        "time of a gang's turn on its GPUs; a longer one wastes less, a shorter one answers sooner",
    )
    run_ahead: int = option(
        duration("500us", "100ms"),
        "4ms",
        "largest GPU time that a tenant may have queued; a longer one delays the next turn",
    )
    admission: str = option(
        choice(*get_args(Admission)),
        "propose",
        "processes outside pods whose tenant has no quota: propose: their environment sets it; fixed: "
        "[default] holds; deny: they are refused",
    )
    nvml_timeout: int = option(
        duration("100ms", "60s"),
        "5s",
        "time that NVML has to answer; after it, its child process is replaced",
    )
    gpu_memory: tuple[tuple[str, int], ...] = option(
        amounts_by_card,
        "",
        "memory of cards without a total in NVML: 96GiB, or 0=96GiB,GPU-…=48GiB; empty: CUDA's value",
    )
    memory_overcommit: int = option(
        number(1, 1000), "100", "sum of memory quotas that is allowed, in percent of a card's memory"
    )
    linger: int = option(
        duration("0s", "60m"), "30s", "time for which a tenant's counters are kept after its last process"
    )
    state_dir: str = option(
        str, "/var/lib/gpulimit", "folder that keeps quotas and suspensions over restarts; empty: none"
    )
    state_segment: str = option(
        str, STATE_NAME, "name of the node's shared-memory segment; another name allows a second daemon"
    )
    shm_read_only: str = option(
        str,
        "",
        "read-only mount of /dev/shm, for a daemon that may not make one itself",
    )
    guests: str = option(
        str,
        "",
        "virtual machines whose GPU metrics are collected: a TOML file that names them, or kubevirt for "
        "KubeVirt's machines on this node",
    )
    tcp_addr: str = option(address, "", "HOST:PORT of calls over TCP, which need a token; empty: off")
    tcp_token_file: str = option(str, "", "file with the operators' token, for all calls over TCP")
    tcp_register_token_file: str = option(
        str, "", "file with the token for processes of this node that register over TCP"
    )

    kubernetes: bool = option(
        switch, "off", "on: follow this node's pods, and apply the quotas in their annotations"
    )
    node_name: str = option(str, "", "this node's name in Kubernetes; empty: the host's name")
    kube_api: str = option(
        url, "", "https://HOST:PORT of the API server; empty: KUBERNETES_SERVICE_HOST and _PORT"
    )
    kube_token_file: str = option(
        str, f"{ACCOUNT}/token", "file with the daemon's token for API server and kubelet"
    )
    kube_ca_file: str = option(str, f"{ACCOUNT}/ca.crt", "authority of the API server's certificate")
    kubelet_url: str = option(
        url, "https://127.0.0.1:10250", "the kubelet, used while the API server is away; empty: never"
    )
    kubelet_ca_file: str = option(
        str,
        "",
        "authority of the kubelet's certificate, or that certificate; empty: the API server's authority",
    )
    device_plugin: bool = option(
        switch,
        "off",
        "on: offer the cards in slices to this node's kubelet; needs `pip install libgpulimit[k8s]`",
    )
    resource_name: str = option(str, "gpulimit.io/gpu", "resource that pods request")
    slices_per_gpu: int = option(
        number(1, 100), "10", "number of slices per card; drain the node before you change it"
    )
    slice_placement: str = option(
        choice("pack", "spread"),
        "pack",
        "card for a container's slices: pack: the one with the least sufficient room; spread: the one with "
        "the most",
    )
    hand_over: str = option(
        choice("nvidia", "cdi", "plain"),
        "nvidia",
        "provider of a container's cards and driver: nvidia: NVIDIA's runtime, by NVIDIA_VISIBLE_DEVICES; "
        "cdi: CDI devices nvidia.com/gpu; plain: this plugin",
    )
    driver_root: str = option(str, "/", "path of the node's root folder, for hand_over = plain")
    library_dir: str = option(
        str, "/var/lib/gpulimit/containers", "folder of the node with the library for containers"
    )
    kubelet_dir: str = option(str, "/var/lib/kubelet", "the kubelet's folder")
    merge_preload: bool = option(
        switch,
        "off",
        "on: the container runtime merges an image's own /etc/ld.so.preload with gpulimit's, by a CDI hook; "
        "always on with hand_over = cdi",
    )
    cdi_dir: str = option(str, "/var/run/cdi", "the node's folder of CDI specifications, for merge_preload")


TABLE = {row.name: row for row in dataclasses.fields(Settings)}


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of the configuration file."""

    default: Quota = NO_QUOTA
    tenants: Mapping[str, Quota] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Config:
    """The daemon's configuration, and the path of its file."""

    settings: Settings = Settings()
    quotas: Quotas = Quotas()
    path: Path | None = None
    is_simulated: bool = False


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `gpulimit daemon`; its help is the table."""
    parser = argparse.ArgumentParser(
        prog="gpulimit daemon",
        description="Run the node daemon, which divides GPU time between tenants and keeps their quotas.",
        epilog=f"Each option can also be set as {PREFIX}NAME in the environment, or as `name = value` in the "
        "file. A flag wins over the environment, and the environment over the file. SIGHUP reads the file's "
        "quotas again. SIGTERM ends the daemon; limits stay in force.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", metavar="FILE", help=f"TOML file with options and quotas [{PREFIX}CONFIG]"
    )
    parser.add_argument("--sim", action="store_true", help="watch the simulated driver's GPUs")
    for name, row in TABLE.items():
        shown = row.metadata["default"] or "none"
        reason = row.metadata["reason"].replace("%", "%%")
        parser.add_argument(flag_of(name), metavar="X", help=f"{reason} ({shown})")
    return parser


def load(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Config:
    """Return the configuration. Raises ConfigError if a value is invalid.

    Prints help or a usage error and exits, as argparse does.
    """
    options = build_parser().parse_args(list(arguments))
    check_environment(environ)
    file_name = options.config or environ.get(f"{PREFIX}CONFIG")
    path = Path(file_name) if file_name else None
    data = read_file(path) if path else {}
    values: dict[str, Any] = {}
    for name, row in TABLE.items():
        said = (
            (getattr(options, name), flag_of(name), ""),
            (environ.get(PREFIX + name.upper()), PREFIX + name.upper(), "environment"),
            (data.get(name), name, str(path)),
        )
        for value, key, origin in said:
            if value is not None:
                values[name] = parsed(row.metadata["parse"], value, key, origin)
                break
    settings = Settings(**values)
    if bool(settings.tcp_addr) != bool(settings.tcp_token_file or settings.tcp_register_token_file):
        reason = "needs tcp_token_file or tcp_register_token_file, and the other way round"
        raise ConfigError("tcp_addr", "", reason)
    return Config(settings, quotas_of(data, path), path, options.sim)


def check_environment(environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a GPULIMITD_* variable that is no option."""
    known = {f"{PREFIX}CONFIG", *(PREFIX + name.upper() for name in TABLE)}
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            raise ConfigError(name, "environment", "no such option")


def parsed(parse: Callable[[str], Any], value: object, key: str, origin: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(key, origin, f"{value!r} is not text or a whole number")
    try:
        return parse(str(value))
    except ValueError as error:
        raise ConfigError(key, origin, str(error)) from error


def read_file(path: Path) -> dict[str, Any]:
    """Return the file's content. Raises ConfigError if a key is unknown."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("--config", "", f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError("--config", "", f"{path}: {error}") from error
    for key in data:
        if key not in TABLE and key not in ("default", "tenants"):
            raise ConfigError(key, str(path), "no such option")
    return data


def reread_quotas(path: Path | None) -> Quotas:
    """Read the file again and return its quotas. Raises ConfigError."""
    return quotas_of(read_file(path), path) if path else Quotas()


def quotas_of(data: Mapping[str, Any], path: Path | None) -> Quotas:
    tenants = data.get("tenants", {})
    if not isinstance(tenants, dict):
        raise ConfigError("tenants", str(path), "is not a table")
    default = quota_of(data.get("default", {}), "default", str(path))
    if default.gang_mode == GangMode.NAMED:
        raise ConfigError("default.gang", str(path), f"{default.gang!a} is a name; write off or auto for all")
    return Quotas(
        default=default,
        tenants={name: tenant_quota(name, table, path) for name, table in tenants.items()},
    )


def tenant_quota(name: str, table: object, path: Path | None) -> Quota:
    if not TENANT.fullmatch(name):
        raise ConfigError(f"tenants.{name}", str(path), "is not a tenant's name")
    return quota_of(table, f"tenants.{name}", str(path))


def quota_of(table: object, place: str, origin: str) -> Quota:
    """Return the quota in a table of memory, compute, request, weight, priority. Raises ConfigError."""
    if not isinstance(table, dict):
        raise ConfigError(place, origin, "is not a table")
    for key, value in table.items():
        if key not in QUOTA_KEYS:
            raise ConfigError(f"{place}.{key}", origin, f"is none of {', '.join(QUOTA_KEYS)}")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError(f"{place}.{key}", origin, f"{value!r} is not text or a whole number")
    variables = {QUOTA_KEYS[key]: str(value) for key, value in table.items() if value != ""}
    try:
        return quota.read(variables, flags={QUOTA_KEYS[key]: f"{place}.{key}" for key in table})
    except QuotaError as error:
        raise ConfigError(error.variable, origin, str(error).partition(": ")[2]) from error
