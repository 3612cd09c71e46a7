# SPDX-License-Identifier: Apache-2.0
"""Options of the two programs: one table each defines flags, environment variables and help.

Flag > environment > default, as in the daemon.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypervisor.config.parsers import address, choice, duration, switch, url
from hypervisor.config.settings import ACCOUNT, flag_of, option, parsed
from hypervisor.errors import ConfigError

T = TypeVar("T")
LOG_LEVELS = ("debug", "info", "warning", "error")


def port(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < (1 << 32) - 1):
        raise ValueError(f"{text!r} is not a vsock port")
    return int(text)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Options of `gpulimit guest-agent`."""

    listen: str = option(
        str,
        "vsock://:9402",
        "comma-separated addresses to serve on: vsock://:PORT, unix://PATH or tcp://HOST:PORT",
    )
    vsock_peers: str = option(
        choice("host", "any"), "host", "peers over vsock: host: only the host and this machine; any: all"
    )
    token_file: str = option(str, "", "file with the token that requests need; empty: none")
    tls_cert: str = option(str, "", "file with the certificate chain for TLS; empty: no TLS")
    tls_key: str = option(str, "", "file with the certificate's key")
    nvml_interval: int = option(duration("100ms", "30s"), "1s", "time between two readings of NVML")
    nvml_timeout: int = option(
        duration("100ms", "60s"),
        "5s",
        "time that NVML has to answer; after it, its child process is replaced",
    )
    log_format: str = option(choice("text", "json"), "text", "lines for people, or JSON objects")
    log_level: str = option(choice(*LOG_LEVELS), "info", "the least that is logged")


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """Options of `gpulimit guest-collector`."""

    guests: str = option(str, "", "TOML file that names guests; empty: none")
    kubevirt: bool = option(switch, "off", "on: also scrape KubeVirt's machines on this node")
    node: str = option(str, "", "this node's name in the cluster; needed with kubevirt")
    kube_api: str = option(url, "", "URL of the API server; empty: a pod's default")
    kube_token_file: str = option(str, f"{ACCOUNT}/token", "file with the token for the API server")
    kube_ca_file: str = option(str, f"{ACCOUNT}/ca.crt", "authority of the API server's certificate")
    port: int = option(port, "9402", "default vsock port of KubeVirt's guests")
    token_file: str = option(str, "", "file with the token for KubeVirt's guests; empty: none")
    ca_file: str = option(str, "", "authority of the certificates of KubeVirt's guests; empty: no TLS")
    server_name: str = option(str, "", "name in those certificates; empty: the machine's own")
    metrics_addr: str = option(address, "0.0.0.0:9403", "HOST:PORT of /metrics, /healthz, /readyz")
    period: int = option(duration("250ms", "5m"), "3250ms", "time between two scrapes of a guest")
    timeout: int = option(duration("100ms", "60s"), "5s", "time that a guest has to answer")
    lock: str = option(
        str,
        "/run/gpulimit/guest-collector.lock",
        "lock file: one collector with this file scrapes, the others wait for its end; empty: none",
    )
    log_format: str = option(choice("text", "json"), "text", "lines for people, or JSON objects")
    log_level: str = option(choice(*LOG_LEVELS), "info", "the least that is logged")


def load(
    kind: type[T],
    parser: argparse.ArgumentParser,
    prefix: str,
    arguments: Sequence[str],
    environ: Mapping[str, str] = os.environ,
) -> tuple[T, argparse.Namespace]:
    """Return the settings, and all options as argparse parsed them. Raises ConfigError if a value is invalid.

    Prints help or a usage error and exits, as argparse does.
    """
    rows = {row.name: row for row in dataclasses.fields(kind)}  # type: ignore[arg-type]
    parser.epilog = f"Each option with a value can also be set as {prefix}NAME in the environment."
    for name, row in rows.items():
        reason = row.metadata["reason"].replace("%", "%%")
        parser.add_argument(
            flag_of(name), metavar="X", help=f"{reason} ({row.metadata['default'] or 'none'})"
        )
    options = parser.parse_args(list(arguments))
    for name in environ:
        if name.startswith(prefix) and name[len(prefix) :].lower() not in rows:
            raise ConfigError(name, "environment", "no such option")
    values: dict[str, Any] = {}
    for name, row in rows.items():
        said = (
            (getattr(options, name), flag_of(name), ""),
            (environ.get(prefix + name.upper()), prefix + name.upper(), "environment"),
        )
        for value, key, origin in said:
            if value is not None:
                values[name] = parsed(row.metadata["parse"], value, key, origin)
                break
    return kind(**values), options
