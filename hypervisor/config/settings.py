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
        str, paths.DAEMON_SOCKET, "where limited programs and the command line reach the daemon"
    )
    socket_group: str = option(str, "", "group whose members may change quotas, besides root")
    metrics_addr: str = option(
        address, "0.0.0.0:9402", "HOST:PORT of /metrics, /healthz, /readyz; empty: off"
    )
    metrics_compat: tuple[str, ...] = option(
        choices("k8s-vgpu-monitor", "nvshare", "all-smi"),
        "",
        "by comma, exporters under whose names the same values are served too: k8s-vgpu-monitor, nvshare, "
        "all-smi",
    )
    metrics_debug_labels: bool = option(
        switch, "off", "on: one series a process, with client_id and host_pid"
    )
    metrics_stale_ttl: int = option(
        duration("0s", "300s"), "300s", "how long the last figures of what cannot be read are still served"
    )
    metrics_ratio_file: str = option(
        str, "", "file with the number of tenants that share a card where no quota says it"
    )
    nvml_interval: int = option(
        duration("100ms", "30s"), "1s", "how often NVML and the tenants' books are read for metrics"
    )
    log_format: str = option(choice("text", "json"), "text", "lines for people, or JSON objects")
    log_level: str = option(choice("debug", "info", "warning", "error"), "info", "the least that is logged")
    log_limit: int = option(
        size("64KiB", "1GiB"), "1MiB", "most bytes an hour that are logged; debug lines are not counted"
    )
    max_tenants: int = option(
        number(1, 120), "120", "most tenants of the node; a quarter of the places is kept for users with none"
    )
    max_tenants_per_user: int = option(number(1, 120), "32", "most tenants of one user, root excepted")
    max_processes_per_user: int = option(
        number(1, 65536), "1024", "most registered processes of one user, root excepted"
    )
    max_connections_per_user: int = option(
        number(1, 65536),
        "2048",
        "most connections of one user, operators excepted, and at most a quarter of all that can be open",
    )
    max_requests_per_user: int = option(
        number(1, 100000),
        "200",
        "requests a second of one user, operators excepted, on average over ten seconds; more are delayed",
    )
    request_timeout: int = option(
        duration("1s", "5m"), "10s", "how long a request may take to come, and its answer to be read"
    )
    tick: int = option(
        duration("500us", "50ms"), "2ms", "how often busy tenants are looked at; more often costs CPU"
    )
    quantum: int = option(
        duration("1ms", "100ms"), "10ms", "GPU time of one turn; longer wastes less, shorter answers sooner"
    )
    run_ahead: int = option(
        duration("500us", "100ms"),
        "4ms",
        "most GPU time a tenant may have queued; longer delays the next turn",
    )
    admission: str = option(
        choice(*get_args(Admission)),
        "propose",
        "processes outside pods that no quota names: follow what their environment says, hold them to "
        "[default], or turn them away",
    )
    nvml_timeout: int = option(
        duration("100ms", "60s"),
        "5s",
        "time that NVML has to answer; after it, its child process is replaced",
    )
    gpu_memory: tuple[tuple[str, int], ...] = option(
        amounts_by_card,
        "",
        "memory of cards for which NVML says none: 96GiB, or 0=96GiB,GPU-…=48GiB; empty: what CUDA says",
    )
    memory_overcommit: int = option(
        number(1, 1000), "100", "percent of a card's memory that quotas may promise in sum"
    )
    linger: int = option(
        duration("0s", "60m"), "30s", "how long a tenant's books are kept after its last process"
    )
    state_dir: str = option(
        str, "/var/lib/gpulimit", "where quotas set by calls survive a restart; empty: nowhere"
    )
    state_segment: str = option(
        str, STATE_NAME, "name of the node's shared memory; another name allows a second daemon"
    )
    shm_read_only: str = option(
        str,
        "",
        "folder that shows /dev/shm through a read-only mount, for a daemon that may not make one itself",
    )
    guests: str = option(
        str,
        "",
        "whose GPU metrics are collected: a TOML file that names virtual machines, or kubevirt for those "
        "that KubeVirt runs on this node",
    )
    tcp_addr: str = option(address, "", "HOST:PORT of calls over TCP, for who bears a token; empty: off")
    tcp_token_file: str = option(str, "", "file with the token of operators, who may do all over TCP")
    tcp_register_token_file: str = option(
        str, "", "file with the token with which processes of this node may register over TCP"
    )

    kubernetes: bool = option(
        switch, "off", "on: know this node's pods, and take their quotas from their annotations"
    )
    node_name: str = option(str, "", "this node's name in Kubernetes; empty: the host's name")
    kube_api: str = option(
        url, "", "https://HOST:PORT of the API server; empty: where KUBERNETES_SERVICE_HOST and _PORT say"
    )
    kube_token_file: str = option(
        str, f"{ACCOUNT}/token", "file with the token that API server and kubelet know the daemon by"
    )
    kube_ca_file: str = option(str, f"{ACCOUNT}/ca.crt", "who signs the API server's certificate")
    kubelet_url: str = option(
        url, "https://127.0.0.1:10250", "the kubelet, asked while the API server is away; empty: never"
    )
    kubelet_ca_file: str = option(
        str,
        "",
        "who signs the kubelet's certificate for the node's name, or that itself; empty: as the API server's",
    )
    device_plugin: bool = option(
        switch,
        "off",
        "on: offer the cards to this node's kubelet in slices; needs `pip install libgpulimit[k8s]`",
    )
    resource_name: str = option(str, "gpulimit.io/gpu", "the resource that pods ask for")
    slices_per_gpu: int = option(
        number(1, 100), "10", "slices that a card is offered in; drain the node before changing it"
    )
    slice_placement: str = option(
        choice("pack", "spread"),
        "pack",
        "slices of one container are taken from the card with the least room that has enough, or the most",
    )
    hand_over: str = option(
        choice("nvidia", "cdi", "plain"),
        "nvidia",
        "who brings a container its cards and the driver: NVIDIA's runtime by NVIDIA_VISIBLE_DEVICES, CDI "
        "devices nvidia.com/gpu, or this plugin",
    )
    driver_root: str = option(str, "/", "where the node's root is seen, for hand_over = plain")
    library_dir: str = option(
        str, "/var/lib/gpulimit/containers", "folder of the node from which containers get the library"
    )
    kubelet_dir: str = option(str, "/var/lib/kubelet", "the kubelet's folder")
    merge_preload: bool = option(
        switch,
        "off",
        "on: the container runtime merges an image's own /etc/ld.so.preload with ours, by a hook that CDI "
        "tells it of; hand_over = cdi has it on",
    )
    cdi_dir: str = option(str, "/var/run/cdi", "the node's folder of CDI specifications, for merging")


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
        description="Run the node daemon: divides GPU time between tenants and keeps their quotas.",
        epilog=f"Each option can also be set as {PREFIX}NAME in the environment, or as `name = value` in the "
        "file; a flag is stronger than the environment, and that than the file. SIGHUP reads its quotas "
        "again; SIGTERM ends the daemon, and limits stay in force.",
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
