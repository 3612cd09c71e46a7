# SPDX-License-Identifier: Apache-2.0
"""Saves the state that must survive a restart: operators' quotas, and tenants.

There are two JSON files in one folder. `quotas.json` has the operators' quotas, and is on the disk before an
operator gets the answer. `tenants.json` changes with every tenant. A thread writes it, since a busy disk may
make that take long, and it is not forced to the disk: after a power failure none of its tenants lives. It
repeats the operators' quotas for versions that only know this file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from hypervisor.errors import StateError
from hypervisor.model import EffectiveQuota, Source, TenantName
from hypervisor.node.state_file import StateFile
from hypervisor.node.state_writer import StateWriter
from limiter import quota
from limiter.errors import QuotaError
from limiter.segment import TENANT

VERSION = 1
SOURCES: tuple[Source, ...] = get_args(Source)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SavedTenant:
    """A saved tenant."""

    uid: int
    effective: EffectiveQuota
    proposed: quota.Quota
    proposal_applied: bool = False
    pod_uid: str | None = None
    pod: str = ""
    containers: tuple[str, ...] = ()
    """Ids of the pod's containers in the tenant."""
    is_suspended: bool = False
    began_s: float = 0.0
    """Unix time of its first process; 0 if not known."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """The files' content."""

    api: Mapping[TenantName, quota.Quota] = field(default_factory=dict)
    tenants: Mapping[TenantName, SavedTenant] = field(default_factory=dict)
    suspended: frozenset[TenantName] = frozenset()
    """Suspended tenants; they need not exist."""


@dataclass(frozen=True, slots=True)
class StateLoss:
    """Saved state that cannot be used any more."""

    tenant: str
    """"" for a whole file."""
    text: str


class StateStore:
    """Both files. Event loop only."""

    def __init__(self, folder: str) -> None:
        self.failures = 0
        self.saved_at_s: float | None = None
        """Unix time of the last save that worked."""
        self._quotas = StateFile(Path(folder) / "quotas.json")
        self._tenants = StateFile(Path(folder) / "tenants.json")
        self._writer = StateWriter(self._tenants, self._on_tenants_written)
        self._quotas_written = ""
        self._problems = {"quotas": "", "tenants": ""}

    @property
    def problem(self) -> str:
        """Reason that the last save failed; "" if it succeeded."""
        return self._problems["quotas"] or self._problems["tenants"]

    def load(self) -> tuple[SavedState, list[StateLoss]]:
        """Return the saved state and its losses. It never fails: a daemon must start.

        An unusable file is kept under another name. An unusable entry only loses itself.
        """
        losses: list[StateLoss] = []
        quotas, tenants = read(self._quotas, losses), read(self._tenants, losses)
        # An older version keeps everything in one file: if it wrote last, its state is the newer one.
        with_api = (
            self._tenants if quotas is None or (tenants and "quotas_file" not in tenants) else self._quotas
        )
        data = tenants if with_api is self._tenants else quotas
        api = entries(with_api, data, "api", decoded_quota, losses)
        living = entries(self._tenants, tenants, "tenants", decoded_tenant, losses)
        suspended = entries(with_api, data, "suspended", bool, losses)
        was_suspended = {name for name, tenant in living.items() if tenant.is_suspended}
        held_back = {name for name, is_suspended in suspended.items() if is_suspended}
        return SavedState(api, living, frozenset(held_back | was_suspended)), losses

    def save(self, saved: SavedState) -> None:
        """Write the changes; `problem` then has the reason of a failure, also of writing tenants earlier."""
        suspended = dict.fromkeys(sorted(saved.suspended), True)
        api = {"version": VERSION, "api": encoded_api(saved.api), "suspended": suspended}
        tenants = api | {"quotas_file": True, "tenants": encoded_tenants(saved.tenants)}
        try:
            self._write_quotas(as_text(api))
        except StateError as error:
            self._problems["quotas"] = str(error)
            self.failures += 1
        else:
            self._problems["quotas"] = ""
            self._writer.write(as_text(tenants))

    def _write_quotas(self, text: str) -> None:
        if self._quotas_written != text:
            self._quotas.write(text, is_durable=True)
            self._quotas_written = text

    def _on_tenants_written(self, problem: str) -> None:
        """Note what came of a write. Writer's thread."""
        self._problems["tenants"] = problem
        if problem:
            self.failures += 1
        else:
            self.saved_at_s = time.time()

    async def settled(self, within_s: float) -> None:
        """Return when all is written, or after a time."""
        await self._writer.settled(within_s)

    def close(self) -> None:
        """Write the rest."""
        self._writer.close()


class NoStateStore:
    """Stand-in where no folder is named: nothing is kept. The members are those of `StateStore`."""

    problem = ""
    failures = 0
    saved_at_s: float | None = None

    def load(self) -> tuple[SavedState, list[StateLoss]]:
        """Return an empty state."""
        return SavedState(), []

    def save(self, _: SavedState) -> None:
        """Do nothing."""

    async def settled(self, within_s: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def state_store_of(folder: str) -> StateStore | NoStateStore:
    """Return the store in a folder; "": there is none."""
    return StateStore(folder) if folder else NoStateStore()


def as_text(data: object) -> str:
    return json.dumps(data, indent=1, sort_keys=True)


def read(file: StateFile, losses: list[StateLoss]) -> dict[str, Any] | None:
    """Return a file's content; None if there is none. An unusable file is renamed and kept."""
    label = "damaged"
    try:
        data = cast("dict[str, Any] | None", file.read())
        if data is None or data.get("version") == VERSION:
            return data
        version = data.get("version")
        if isinstance(version, int):
            label = f"version-{version}"
        raise StateError(f"it has version {version!a:.20}, not {VERSION}")
    except StateError as error:
        losses.append(StateLoss("", f"cannot read {file.path}: {error}; {keep_copy(file.keep_aside, label)}"))
        return None


def entries(
    file: StateFile,
    data: Mapping[str, Any] | None,
    section: str,
    decode: Callable[[Any], T],
    losses: list[StateLoss],
) -> dict[TenantName, T]:
    """Return a section's usable entries. If an entry is unusable, a copy of the whole file is kept."""
    said = (data or {}).get(section, {})
    if not isinstance(said, dict):
        copy_note = keep_copy(file.copy_aside, "damaged")
        losses.append(
            StateLoss("", f"cannot read {section!r} of {file.path}: it is not an object; {copy_note}")
        )
        return {}
    usable: dict[TenantName, T] = {}
    unusable: dict[str, str] = {}
    for name, value in said.items():
        try:
            if not TENANT.fullmatch(name):
                raise ValueError("it is not a tenant's name")
            usable[TenantName(name)] = decode(value)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, QuotaError) as error:
            unusable[name] = f"{name!a:.80} of {section!r} in {file.path}: {reason_of(error)}"
    if unusable:
        copy_note = keep_copy(file.copy_aside, "damaged")
        losses += [
            StateLoss(name, f"cannot read {text}; the other entries hold, {copy_note}")
            for name, text in unusable.items()
        ]
    return usable


def reason_of(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def keep_copy(keep: Callable[[str], Path], label: str) -> str:
    """Keep a file; return a text about the result."""
    try:
        return f"the file is kept as {keep(label).name}"
    except StateError as error:
        return f"{error}, so nothing is saved"


def encoded_api(api: Mapping[TenantName, quota.Quota]) -> dict[str, Any]:
    return {name: said.environ() for name, said in api.items()}


def encoded_tenants(tenants: Mapping[TenantName, SavedTenant]) -> dict[str, Any]:
    return {
        name: {
            "uid": t.uid,
            "quota": t.effective.quota.environ(),
            "source": t.effective.source,
            "gang_source": t.effective.gang_source,
            "proposed": t.proposed.environ(),
            "heard": t.proposal_applied,
            "pod_uid": t.pod_uid,
            "pod": t.pod,
            "containers": list(t.containers),
            "suspended": t.is_suspended,
            "began_s": t.began_s,
        }
        for name, t in tenants.items()
    }


def decoded_quota(data: Any) -> quota.Quota:
    """Return a saved quota. Raises ValueError if a key or value is invalid."""
    for key, value in data.items():
        if key not in quota.VARIABLES or not isinstance(value, str):
            raise ValueError(f"{key!a:.40} is no part of a quota")
    return quota.read(data)


def decoded_tenant(data: Any) -> SavedTenant:
    source, gang_source = data["source"], data.get("gang_source")
    for one in (source, gang_source or source):
        if one not in SOURCES:
            raise ValueError(f"unknown source {one!a:.40}")
    pod_uid = data["pod_uid"]
    if pod_uid is not None and not isinstance(pod_uid, str):
        raise ValueError("its pod_uid is not text")
    return SavedTenant(
        uid=int(data["uid"]),
        effective=EffectiveQuota(decoded_quota(data["quota"]), source, gang_source),
        proposed=decoded_quota(data["proposed"]),
        proposal_applied=bool(data["heard"]),
        pod_uid=pod_uid,
        pod=str(data["pod"]),
        containers=tuple(str(one) for one in data.get("containers", [])),
        is_suspended=bool(data["suspended"]),
        began_s=float(data.get("began_s", 0.0)),
    )
