# SPDX-License-Identifier: Apache-2.0
"""What must survive a restart: quotas that operators set, and the tenants that were there. One JSON file."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypervisor.model import Held, Source, TenantName
from limiter import quota
from limiter.errors import QuotaError

logger = logging.getLogger(__name__)
VERSION = 1
SOURCES: tuple[Source, ...] = ("pod", "api", "config", "default", "environment")


@dataclass(frozen=True, slots=True)
class SavedTenant:
    """A tenant as it was."""

    uid: int
    held: Held
    proposed: quota.Quota
    was_heard: bool = False
    pod_uid: str | None = None
    pod: str = ""
    containers: tuple[str, ...] = ()
    """Ids of the pod's containers that are in it."""
    is_suspended: bool = False


@dataclass(frozen=True, slots=True)
class Saved:
    """The file's content."""

    api: Mapping[TenantName, quota.Quota] = field(default_factory=dict)
    tenants: Mapping[TenantName, SavedTenant] = field(default_factory=dict)


class Store:
    """The file; without a folder nothing is kept."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "tenants.json" if folder else None
        self._written = ""
        self._has_complained = False

    def load(self) -> Saved:
        """Return what was saved. What cannot be read is logged and left out: a daemon must start."""
        try:
            data = json.loads(self._path.read_text(encoding="utf-8")) if self._path else None
            return decoded(data) if data else Saved()
        except FileNotFoundError:
            return Saved()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, QuotaError) as error:
            logger.warning("cannot read %s, so quotas set by calls are lost: %s", self._path, error)
            return Saved()

    def save(self, saved: Saved) -> None:
        """Write it, in one step; not when nothing changed."""
        text = json.dumps(encoded(saved), indent=1, sort_keys=True)
        if self._path is None or text == self._written:
            return
        fresh = self._path.with_name(f".{self._path.name}.new")
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(self._path)
            self._written = text
        except OSError as error:
            if not self._has_complained:
                logger.warning(
                    "cannot write %s, so quotas set by calls end with this daemon: %s", self._path, error
                )
            self._has_complained = True


def encoded(saved: Saved) -> dict[str, Any]:
    return {
        "version": VERSION,
        "api": {name: said.environ() for name, said in saved.api.items()},
        "tenants": {
            name: {
                "uid": t.uid,
                "quota": t.held.quota.environ(),
                "source": t.held.source,
                "proposed": t.proposed.environ(),
                "heard": t.was_heard,
                "pod_uid": t.pod_uid,
                "pod": t.pod,
                "containers": list(t.containers),
                "suspended": t.is_suspended,
            }
            for name, t in saved.tenants.items()
        },
    }


def decoded(data: dict[str, Any]) -> Saved:
    if data["version"] != VERSION:
        raise ValueError(f"it has version {data['version']}, not {VERSION}")
    return Saved(
        api={TenantName(name): quota.read(said) for name, said in data["api"].items()},
        tenants={TenantName(name): decoded_tenant(t) for name, t in data["tenants"].items()},
    )


def decoded_tenant(data: dict[str, Any]) -> SavedTenant:
    source = data["source"]
    if source not in SOURCES:
        raise ValueError(f"unknown source {source!r}")
    held = Held(quota.read(data["quota"]), source)
    return SavedTenant(
        uid=int(data["uid"]),
        held=held,
        proposed=quota.read(data["proposed"]),
        was_heard=bool(data["heard"]),
        pod_uid=data["pod_uid"],
        pod=str(data["pod"]),
        containers=tuple(str(one) for one in data.get("containers", [])),
        is_suspended=bool(data["suspended"]),
    )
