# SPDX-License-Identifier: Apache-2.0
"""Reading pages is cheap: those of a hundred nodes within a second of CPU, a hostile one within bounds."""

from __future__ import annotations

import pytest

from hypervisor.scraper.parser import parse
from tests.remote.measure import NODES, cpu_s, page_of_a_node, worst_page


def test_pages_of_800_gpus_are_read_within_a_second_of_cpu() -> None:
    page = page_of_a_node()
    assert parse(page).count > 1000
    # Beside other work a core counts slower than it is; one good measurement shows what it takes.
    assert any(cpu_s(lambda: parse(page), NODES, best_of=1) < 1.0 for _ in range(8))


@pytest.mark.parametrize(
    "data",
    [
        worst_page(),
        b"m{" * 5_000_000,
        b'm{a="' * 2_000_000,
        b'm{a="\\' * 1_500_000 + b'"} 1',
        b"m " + b"1" * 10_000_000,
        b"\n" * 10_000_000,
        b"#" * 10_000_000,
        b"m{" + b'a="b",' * 1_600_000 + b"} 1",
        b"m 1 " + b" " * 10_000_000,
    ],
    ids=["full", "braces", "quotes", "escapes", "digits", "line ends", "hashes", "labels", "blanks"],
)
def test_no_page_takes_long(data) -> None:
    """Linear work, so that a page ten times larger than it may be shows what is not."""
    assert cpu_s(lambda: parse(data), 1, best_of=1) < 6.0
