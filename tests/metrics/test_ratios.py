# SPDX-License-Identifier: Apache-2.0
"""The file that says how many share a card."""

from __future__ import annotations

import pytest

from hypervisor.metrics.sharing_ratio import Ratios, parse


def ask(ratios: Ratios, **who: str) -> float | None:
    return ratios.of(gpu_uuid="GPU-1", gpu_index=0, **who)


def test_one_number_is_for_all() -> None:
    assert ask(parse("4")) == 4
    assert ask(parse("# half\n2.5 # each\n\n")) == 2.5


def test_what_is_said_in_particular_is_stronger() -> None:
    ratios = parse("4\n0=3\nns/train=2\n")
    assert ask(ratios) == 3
    assert ask(ratios, namespace="ns", pod="train") == 2
    assert ratios.of(gpu_uuid="GPU-2", gpu_index=1) == 4
    assert ask(parse("0=3\nGPU-1=5")) == 5


def test_nothing_said_is_no_ratio() -> None:
    assert ask(parse("")) is None


@pytest.mark.parametrize("text", ["0", "-1", "x", "nan", "inf", "0=", "=", "1e99", "4\nGPU-1=a"])
def test_what_is_no_ratio_is_refused(text) -> None:
    with pytest.raises(ValueError, match="line"):
        parse(text)
