# SPDX-License-Identifier: Apache-2.0
"""One line of the doctor's answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """Result of a check: subject, state and, unless it is good, a remedy."""

    name: str
    level: Level
    text: str
    advice: str = ""


def ok(name: str, text: str) -> Check:
    return Check(name, "ok", text)


def warn(name: str, text: str, advice: str) -> Check:
    return Check(name, "warn", text, advice)


def fail(name: str, text: str, advice: str) -> Check:
    return Check(name, "fail", text, advice)
