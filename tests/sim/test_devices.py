# SPDX-License-Identifier: Apache-2.0
"""Several GPUs: each has a quota of its own, which follows its UUID in whatever order the devices come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import ROOT, Program

H100, A100, L4 = (
    "GPU-1f0b22bb-0002-4a00-8000-000000000002",
    "GPU-2c0c33cc-0003-4a00-8000-000000000003",
    "GPU-1f0a11aa-0001-4a00-8000-000000000001",
)
CONTEXT_MIB = {H100: 518, A100: 424, L4: 300}
GIB = 1024
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
# By speed, CUDA's own order: H100, A100, L4.  By PCI address, as NVML and quotas count: 0 L4, 1 H100, 2 A100.
EACH = "0=2GiB,1=4GiB,2=3GiB"
LIMIT = {L4: 2 * GIB, H100: 4 * GIB, A100: 3 * GIB}

Rows = list[tuple[str, int, int]]


@pytest.fixture
def limits(program: Program, run_process: Any, limited_env: dict[str, str]) -> Callable[..., Rows]:
    """What the program finds on each visible device: UUID, total and granted MiB."""

    def run(*arguments: str, **environ: str) -> Rows:
        env = limited_env | {"GPULIMIT_SIM_PROFILE": "mixed"} | environ
        ended = run_process([program("devices/limits"), *arguments], env=env, expect=0)
        # A GPU that gets nothing, or too little for a context, is said once; nothing else is.
        assert all("a context alone takes" in line for line in ended.stderr.splitlines())
        *lines, end = ended.stdout.splitlines()
        assert end == "end"
        rows = [line.split() for line in lines]
        return [(uuid, int(total), int(granted) if granted != "-" else 0) for uuid, total, granted in rows]

    return run


def assert_limits(rows: Rows, expected: list[str], limit: dict[str, int] = LIMIT) -> None:
    """The devices in this order, each held to its own limit, context included."""
    assert [uuid for uuid, _, _ in rows] == expected
    for uuid, total, granted in rows:
        assert total == limit[uuid]
        assert granted == max(0, limit[uuid] - CONTEXT_MIB[uuid]) // 64 * 64


VISIBLE: list[tuple[str | None, dict[str, str], list[str]]] = [
    (None, {}, [H100, A100, L4]),
    (None, PCI, [L4, H100, A100]),
    ("0", {}, [H100]),
    ("1", {}, [A100]),
    ("1", PCI, [H100]),
    ("2,0", {}, [L4, H100]),
    ("2,0", PCI, [A100, L4]),
    ("1,0", {}, [A100, H100]),
    ("1,2", PCI, [H100, A100]),
    ("2,1,0", {}, [L4, A100, H100]),
    (A100, {}, [A100]),
    (f"{L4},{H100}", {}, [L4, H100]),
    ("GPU-2c,GPU-1f0b", {}, [A100, H100]),
    ("GPU-1F0A", PCI, [L4]),
    (f"1,{L4}", {}, [A100, L4]),
    ("0,-1,1", {}, [H100]),
    ("0,9,1", {}, [H100]),
    (" 1 , 0 ", {}, [A100, H100]),
]
QUOTAS = {
    "by index": EACH,
    "by uuid": f"{L4}=2GiB,{H100}=4GiB,{A100}=3GiB",
    "by prefix": "GPU-1f0a=2GiB,GPU-1f0b=4GiB,GPU-2c0c=3GiB",
    "by prefix in capitals": "GPU-1F0A=2GiB,GPU-1F0B=4GiB,GPU-2C0C=3GiB",
    "mixed, others": f"GPU-1f0b=4GiB,{A100}=3GiB,*=2GiB",
    "uuid over index": f"{EACH.replace('1=4', '1=1')},{H100}=4GiB",
}


@pytest.mark.parametrize(("visible", "order", "expected"), VISIBLE)
@pytest.mark.parametrize("quota", ["by index", "by uuid"])
def test_each_device_has_its_own_quota_in_whichever_order(
    limits: Any, quota: str, visible: str | None, order: dict[str, str], expected: list[str]
) -> None:
    environ = order | ({"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {})
    assert_limits(limits(GPULIMIT_MEMORY=QUOTAS[quota], **environ), expected)


@pytest.mark.parametrize("quota", sorted(QUOTAS))
def test_quotas_name_devices_in_many_ways(limits: Any, quota: str) -> None:
    assert_limits(limits(GPULIMIT_MEMORY=QUOTAS[quota], CUDA_VISIBLE_DEVICES="2,0,1"), [L4, H100, A100])


def test_one_amount_is_each_device_s(limits: Any) -> None:
    same = dict.fromkeys((H100, A100, L4), 2 * GIB)
    assert_limits(limits(GPULIMIT_MEMORY="2GiB"), [H100, A100, L4], same)


@pytest.mark.parametrize("visible", ["", "-1", "1,1", "nonsense", "GPU-1f", "GPU-dead,0"])
def test_where_nothing_is_visible_the_driver_s_answer_stands(limits: Any, visible: str) -> None:
    assert limits(GPULIMIT_MEMORY=EACH, CUDA_VISIBLE_DEVICES=visible) == [("none", 100, 0)]


def test_a_device_that_the_list_leaves_out_gets_nothing(limits: Any) -> None:
    rows = {uuid: granted for uuid, _, granted in limits(GPULIMIT_MEMORY="1=4GiB")}
    assert rows == {H100: (4 * GIB - 518) // 64 * 64, A100: 0, L4: 0}


def test_a_share_is_of_the_card_that_it_is_on(limits: Any) -> None:
    rows = {uuid: total for uuid, total, _ in limits(GPULIMIT_MEMORY="2%")}
    cards = {H100: 81559 - 551, A100: 81920 - 586, L4: 23034 - 462}
    assert all(abs(rows[uuid] - cards[uuid] * 0.02) <= 16 for uuid in cards), rows


def test_nvml_shows_each_card_s_own_quota_by_its_own_order(limits: Any) -> None:
    """Whatever CUDA shows, NVML shows the machine by PCI address."""
    for visible in ("1,0", "2", ""):
        rows = limits("nvml", GPULIMIT_MEMORY=EACH, CUDA_VISIBLE_DEVICES=visible)
        assert [(uuid, total) for uuid, total, _ in rows] == [(L4, 2 * GIB), (H100, 4 * GIB), (A100, 3 * GIB)]


def test_processes_that_see_different_cards_are_booked_on_their_own(
    program: Program, start_process: Any, limited_env: dict[str, str], books: Any, card_used: Any
) -> None:
    """Each counts its card as device 0; one cannot use the other's quota up."""
    env = limited_env | {"GPULIMIT_SIM_PROFILE": "mixed", "GPULIMIT_MEMORY": EACH}
    for visible in ("1", f"{L4}"):
        process = start_process(
            [program("devices/limits")], env=env | {"CUDA_VISIBLE_DEVICES": visible}, stdin=-1
        )
        lines = [process.stdout.readline() for _ in range(2)]
        assert lines[1] == "end\n"
    usage = books()
    used = {f"GPU-{d.uuid}": d.used_bytes >> 20 for d in usage.devices}
    assert used == {
        uuid: (LIMIT[uuid] - CONTEXT_MIB[uuid]) // 64 * 64 + CONTEXT_MIB[uuid] for uuid in (A100, L4)
    }
    # NVML's figure begins with what the driver keeps for itself.
    assert [n >> 20 for n in card_used()] == [used[L4] + 462, 551, used[A100] + 586]


def test_a_quota_follows_its_card_when_another_one_fails(
    limits: Any, sim_env: dict[str, str], tmp_path: Any
) -> None:
    """The second card is missing after a restart, so that numbers change; UUIDs do not."""
    profile = (tmp_path / "mixed.profile").resolve()
    text = (ROOT / "csrc" / "sim" / "profiles" / "mixed.profile").read_text()
    head, *cards = text.split("[gpu]")
    profile.write_text("[gpu]".join([head, *(card for card in cards if H100 not in card)]))
    quota = QUOTAS["by uuid"]
    assert_limits(limits(GPULIMIT_MEMORY=quota), [H100, A100, L4])
    assert_limits(limits(GPULIMIT_MEMORY=quota, GPULIMIT_SIM_PROFILE=str(profile)), [A100, L4])


def test_sixteen_cards_each_have_a_quota(limits: Any) -> None:
    quota = ",".join(f"{i}={i + 1}GiB" for i in range(16))
    rows = limits(GPULIMIT_MEMORY=quota, GPULIMIT_SIM_PROFILE="h100", GPULIMIT_SIM_GPUS="16")
    assert len({uuid for uuid, _, _ in rows}) == 16
    assert [total for _, total, _ in rows] == [(i + 1) * GIB for i in range(16)]
