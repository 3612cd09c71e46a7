# SPDX-License-Identifier: Apache-2.0
"""Whose account a connection is charged to."""

from __future__ import annotations

import pytest

from hypervisor.api.callers import machine


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::1", "::1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_machine_with_many_addresses_has_one_account(address: str, expected: str) -> None:
    assert machine(address) == expected
