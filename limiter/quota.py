# SPDX-License-Identifier: Apache-2.0
"""Quotas as values, parsed from variables or flags by the library's own C parser.

So the command line refuses exactly the quotas that a limited process would refuse. csrc/quota/quota.h and
docs/quotas.md describe syntax and precedence. Pure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Literal, cast

from limiter._native import ffi, lib
from limiter.errors import QuotaError

Priority = Literal["low", "normal", "high"]
PRIORITIES: tuple[Priority, ...] = ("low", "normal", "high")
NO_LIMIT_PERCENT = 100
DEFAULT_WEIGHT = int(lib.GL_DEFAULT_WEIGHT)
"""Weight of a tenant without a weight, whatever its request."""


class PriorityClass(IntEnum):
    """Priority classes as numbers, as in policies and the scheduler (enum gl_priority in csrc/layout.h)."""

    LOW = int(lib.GL_PRIORITY_LOW)
    NORMAL = int(lib.GL_PRIORITY_NORMAL)
    HIGH = int(lib.GL_PRIORITY_HIGH)

    @classmethod
    def of(cls, name: Priority) -> PriorityClass:
        """Return the class of a name, one of PRIORITIES."""
        return cls[name.upper()]

    @property
    def quota_name(self) -> Priority:
        """Name of the class in quotas."""
        return cast(Priority, self.name.lower())


class GangMode(IntEnum):
    """Meanings of a quota's gang, as policies have them (enum gl_gang_mode in csrc/layout.h)."""

    AUTO = int(lib.GL_GANG_AUTO)
    OFF = int(lib.GL_GANG_OFF)
    NAMED = int(lib.GL_GANG_NAMED)


VARIABLES = (
    "GPULIMIT_MEMORY",
    "GPULIMIT_COMPUTE",
    "GPULIMIT_REQUEST",
    "GPULIMIT_WEIGHT",
    "GPULIMIT_PRIORITY",
    "GPULIMIT_MEMORY_WAIT",
    "GPULIMIT_GANG",
    "GPULIMIT_TENANT",
)
FOREIGN_VARIABLES = (
    "TENSOR_FUSION_CUDA_MEM_LIMIT",
    "TENSOR_FUSION_CUDA_UP_LIMIT",
    *(
        f"CUDA_DEVICE_{kind}_LIMIT{index}"
        for kind in ("MEMORY", "SM")
        for index in ("", *(f"_{i}" for i in range(16)))
    ),
)
"""Variables of other limiters that are accepted too."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One amount and its devices."""

    device: str
    """"*", an index in NVML's order, or the beginning of a UUID."""
    amount: int
    """Bytes, or thousandths of a percent of the card if `is_share`; compute: percent of GPU time."""
    is_share: bool = False

    def memory_text(self) -> str:
        """Return an entry of a memory list; with a unit: a small number without one is refused."""
        if not self.is_share:
            return f"{self.device}={self.amount}B"
        whole, thousandths = divmod(self.amount, 1000)
        return f"{self.device}={whole}.{thousandths:03}%" if thousandths else f"{self.device}={whole}%"

    def compute_text(self) -> str:
        """Return an entry of a compute list."""
        return f"{self.device}={self.amount}"


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one process; None if not set."""

    memory: tuple[Rule, ...] = ()
    compute: tuple[Rule, ...] = ()
    request_percent: int | None = None
    weight: int | None = None
    priority: Priority | None = None
    memory_wait_s: int | None = None
    """Longest time that an allocation waits for memory before it is refused."""
    gang: str | None = None
    """"off", "auto", or the name of a gang of tenants; None means "auto"."""
    tenant: str | None = None
    memory_source: str | None = None
    """Variable that set it."""
    compute_source: str | None = None

    @property
    def is_set(self) -> bool:
        """True if any field is set, so that the process is under quota."""
        return self.environ() != {}

    @property
    def has_limits(self) -> bool:
        """True if a field other than the names of tenant and gang is set."""
        return replace(self, tenant=None, gang=None).is_set

    @property
    def gang_mode(self) -> GangMode:
        """The meaning of `gang`."""
        words = {None: GangMode.AUTO, "auto": GangMode.AUTO, "off": GangMode.OFF}
        return words.get(self.gang, GangMode.NAMED)

    def memory_bytes(
        self, card_bytes: int, *, index: int | None = None, uuid: str | None = None
    ) -> int | None:
        """Return the memory limit of a card, at most `card_bytes`; None without a quota, 0 without a rule for
        it.
        """
        limit = ffi.new("uint64_t *")
        if not lib.gl_quota_memory_for(self._native(), *self._card(index, uuid), card_bytes, limit):
            return None
        return int(limit[0])

    def compute_percent(self, *, index: int | None = None, uuid: str | None = None) -> int:
        """Return the limit of a card in percent of GPU time; 100 without a limit, 1 if no rule names it."""
        return int(lib.gl_quota_compute_for(self._native(), *self._card(index, uuid)))

    def environ(self) -> dict[str, str]:
        """Return the variables for this quota in canonical form; `read` parses them to the same quota."""
        said = {
            "GPULIMIT_MEMORY": ",".join(rule.memory_text() for rule in self.memory),
            "GPULIMIT_COMPUTE": ",".join(rule.compute_text() for rule in self.compute),
            "GPULIMIT_REQUEST": self.request_percent,
            "GPULIMIT_WEIGHT": self.weight,
            "GPULIMIT_PRIORITY": self.priority,
            "GPULIMIT_MEMORY_WAIT": self.memory_wait_s,
            "GPULIMIT_GANG": self.gang,
            "GPULIMIT_TENANT": self.tenant,
        }
        return {name: str(value) for name, value in said.items() if value}

    def _native(self) -> Any:
        return read_native(self.environ(), {})

    @staticmethod
    def _card(index: int | None, uuid: str | None) -> tuple[int, Any]:
        return -1 if index is None else index, ffi.NULL if uuid is None else uuid.encode()


def read(environ: Mapping[str, str], *, flags: Mapping[str, str] | None = None) -> Quota:
    """Return the quota in variables. Raises QuotaError for the first one that cannot be parsed.

    `flags` maps variables from the command line to their flags, {"GPULIMIT_MEMORY": "--memory"}: errors then
    name the flag.
    """
    native = read_native(environ, flags or {})
    return Quota(
        memory=tuple(rules_of(native.memory, native.memory_rules)),
        compute=tuple(rules_of(native.compute, native.compute_rules)),
        request_percent=native.request or None,
        weight=native.weight or None,
        priority=PriorityClass(native.priority).quota_name if native.priority else None,
        memory_wait_s=native.memory_wait or None,
        gang=text_of(native.gang) or None,
        tenant=text_of(native.tenant) or None,
        memory_source=text_of(native.memory_source) or None,
        compute_source=text_of(native.compute_source) or None,
    )


def parse_memory(text: str, *, source: str = "memory") -> tuple[Rule, ...]:
    """Return the rules of one memory quota, "4GiB" or "0=4GiB,*=50%"; errors name `source`."""
    return read({"GPULIMIT_MEMORY": text}, flags={"GPULIMIT_MEMORY": source}).memory


def parse_compute(text: str, *, source: str = "compute") -> tuple[Rule, ...]:
    """Return the rules of one compute limit, "30" or "0=30,*=50"; errors name `source`."""
    return read({"GPULIMIT_COMPUTE": text}, flags={"GPULIMIT_COMPUTE": source}).compute


def read_native(environ: Mapping[str, str], flags: Mapping[str, str]) -> Any:
    """Return the C structure for some variables; raise QuotaError."""
    kept = []
    for name in (*VARIABLES, *FOREIGN_VARIABLES):
        value = environ.get(name)
        if value is not None:
            kept += [ffi.new("char[]", name.encode()), ffi.new("char[]", encoded(name, value, flags))]
    native = ffi.new("struct gl_quota *")
    if lib.gl_native_read(native, ffi.new("char *[]", [*kept, ffi.NULL])) == 0:
        return native
    variable, line = text_of(native.error_variable), text_of(native.error)
    shown = flags.get(variable, variable)
    raise QuotaError(
        shown + line.removeprefix(variable),
        variable=shown,
        value=environ[variable],
        position=native.error_position,
        reason=text_of(native.error_reason),
    )


def encoded(name: str, value: str, flags: Mapping[str, str]) -> bytes:
    """Return a value as bytes of an environment. Raises QuotaError if it cannot be in one."""
    shown = flags.get(name, name)
    try:
        raw = os.fsencode(value)
    except UnicodeEncodeError as error:
        reason, position = "not text", error.start + 1
    else:
        if b"\0" not in raw:
            return raw
        reason, position = "a zero byte cannot be in a variable", value.index("\0") + 1
    raise QuotaError(
        f"{shown}: {value[:60]!a} at character {position}: {reason}",
        variable=shown,
        value=value,
        position=position,
        reason=reason,
    )


def rules_of(native: Any, count: int) -> Iterator[Rule]:
    """Yield the rules of a C array."""
    for rule in native[0:count]:
        device = "*"
        if rule.select == lib.GL_SELECT_INDEX:
            device = str(rule.index)
        elif rule.select == lib.GL_SELECT_UUID:
            device = text_of(rule.uuid)
        yield Rule(device, rule.amount, bool(rule.percent))


def text_of(chars: Any) -> str:
    """Return a C string."""
    return cast(bytes, ffi.string(chars)).decode("utf-8", "replace")
