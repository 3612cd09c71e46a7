# SPDX-License-Identifier: Apache-2.0
"""Numbers with units."""

from __future__ import annotations

import pytest

from limiter.units import parse_bytes, parse_ns, show_bytes, show_ns


@pytest.mark.parametrize(
    ("text", "value"),
    [("1GiB", 1 << 30), ("1.5 MiB", 3 << 19), ("4096", 4096), ("0", 0), ("2TiB", 2 << 40)],
)
def test_sizes_are_exact(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(("text", "value"), [("500us", 500_000), ("1.5s", 1_500_000_000), ("7ns", 7)])
def test_durations_are_exact(text: str, value: int) -> None:
    assert parse_ns(text) == value


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 GB!", "1e3", "0x10", "1gib"])
def test_what_is_no_size_is_refused_with_the_units_known(text: str) -> None:
    with pytest.raises(ValueError, match="GiB"):
        parse_bytes(text)


def test_numbers_are_shown_in_the_unit_that_fits() -> None:
    assert [show_bytes(n) for n in (17, 1 << 20, 3 << 29)] == ["17 B", "1 MiB", "1.5 GiB"]
    assert [show_ns(n) for n in (40, 3_200_000, 1_250_000_000)] == ["40 ns", "3.2 ms", "1.25 s"]
