# SPDX-License-Identifier: Apache-2.0
"""What of a guest's page is taken over, and what never is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypervisor.guests.metric_names import BOUNDS
from hypervisor.guests.sanitizer import LIMITS, MAX_GPUS, GuestPage, reading_of
from hypervisor.metrics.catalogue import CATALOGUE
from hypervisor.scraper.parser import parse
from tests.guests import pages
from tests.guests.pages import ALL, UUID


def read(page: bytes | str) -> GuestPage:
    return reading_of(parse(page if isinstance(page, bytes) else page.encode(), LIMITS))


def test_all_that_is_taken_over_is_in_the_catalogue() -> None:
    served = {
        name.removeprefix("kubevirt_vmi_gpu_") for name in CATALOGUE if name.startswith("kubevirt_vmi_gpu_")
    }
    assert served == set(BOUNDS) == set(ALL)


@pytest.mark.parametrize(
    ("page", "missing", "dropped"),
    [
        (pages.own(), set(), {}),
        (pages.dcgm(), {"running_processes"}, {"not_listed": 2, "mig": 2}),
        (pages.nvidia_gpu_exporter(), set(), {"not_listed": 2}),
    ],
    ids=["own", "dcgm", "nvidia_gpu_exporter"],
)
def test_three_exporters_say_the_same(page, missing, dropped) -> None:
    reading = read(page)
    (gpu,) = reading.gpus
    assert (gpu.index, gpu.uuid, gpu.name) == (0, UUID.format(1), "NVIDIA A100-SXM4-40GB")
    wanted = {name: value for name, value in ALL.items() if name not in missing}
    assert dict(gpu.values) == pytest.approx(wanted)
    assert reading.dropped == dropped


def test_the_agents_word_about_itself() -> None:
    reading = read(pages.own(status=12, boot_id="abc"))
    assert reading.status == 12 and reading.boot_id == "abc"
    assert read(pages.dcgm()).status is None
    assert read("gpulimit_guest_agent_status -1\n").dropped == {"range": 1}


@pytest.mark.parametrize("label", ["namespace", "name", "node", "pod", "instance", "job", "host", "Hostname"])
def test_who_a_guest_says_it_is_is_of_no_interest(label) -> None:
    line = f'gpulimit_gpu_utilization_ratio{{gpu_uuid="GPU-1",gpu_index="0",{label}="victim"}} 0.5\n'
    (gpu,) = read(line).gpus
    assert gpu.values == {"utilization_percent": 50} and "victim" not in repr(gpu)


def test_families_of_the_collector_itself_cannot_be_forged() -> None:
    reading = read(
        'kubevirt_vmi_gpu_utilization_percent{namespace="victim",name="vm",gpu_uuid="GPU-1"} 100\n'
        'gpulimit_guest_up{namespace="victim",name="vm"} 0\nup 0\n'
    )
    assert reading.gpus == () and reading.dropped == {"not_listed": 3}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1.01", "1e308", "4294967295", "9223372036854775794"])
def test_values_that_cannot_be_are_dropped(value) -> None:
    reading = read(f'gpulimit_gpu_utilization_ratio{{gpu_uuid="GPU-1"}} {value}\n')
    assert reading.gpus == () and reading.dropped == {"range": 1}


@pytest.mark.parametrize(
    "uuid", ["", "x" * 81, "GPU 1", "../etc", "GPU-é", "-GPU", 'GPU-1\\"', "GPU-1\\nup 1"]
)
def test_uuids_that_cannot_be_are_dropped(uuid) -> None:
    reading = read(f'gpulimit_gpu_power_watts{{gpu_uuid="{uuid}"}} 5\n')
    assert reading.gpus == () and reading.dropped == {"label": 1}


def test_too_many_gpus() -> None:
    lines = (f'gpulimit_gpu_power_watts{{gpu_uuid="GPU-{n}",gpu_index="{n}"}} 5\n' for n in range(100))
    reading = read("".join(lines))
    assert len(reading.gpus) == MAX_GPUS and reading.dropped == {"too_many_gpus": 100 - MAX_GPUS}


def test_an_index_that_is_missing_or_nonsense_is_made_up() -> None:
    lines = (
        '{gpu_uuid="GPU-a"} 1',
        '{gpu_uuid="GPU-b",gpu_index="0"} 1',
        '{gpu_uuid="GPU-c",gpu_index="x9"} 1',
    )
    reading = read("".join(f"gpulimit_gpu_power_watts{line}\n" for line in lines))
    assert {gpu.uuid: gpu.index for gpu in reading.gpus} == {"GPU-a": 1, "GPU-b": 0, "GPU-c": 2}


def test_memory_of_which_a_part_is_unknown_has_no_total() -> None:
    (gpu,) = read('DCGM_FI_DEV_FB_USED{UUID="GPU-1",gpu="0"} 5\n').gpus
    assert gpu.values == {"memory_used_bytes": 5 << 20}
    (gpu,) = read(
        "".join(
            f'DCGM_FI_DEV_FB_{n}{{UUID="GPU-1"}} {v}\n' for n, v in (("USED", 5), ("FREE", 6), ("TOTAL", 12))
        )
    ).gpus
    assert gpu.values["memory_total_bytes"] == 12 << 20


def test_another_machine_is_noticed() -> None:
    one = read(pages.own(1, boot_id="b1"))
    assert not one.is_of_another_machine(one)
    assert read(pages.own(1, boot_id="b2")).is_of_another_machine(one)
    assert not read(pages.own(2, boot_id="b1")).is_of_another_machine(one), "cards may come and go"
    assert read(pages.own(2, boot_id="")).is_of_another_machine(one)
    assert not GuestPage().is_of_another_machine(one)


LINES = st.sampled_from(
    [line for page in (pages.own(), pages.dcgm(), pages.nvidia_gpu_exporter()) for line in page.splitlines()]
)
PIECES = st.lists(LINES | st.binary(max_size=40), max_size=40)


@settings(max_examples=200, deadline=None)
@given(PIECES)
def test_whatever_a_guest_sends_its_reading_is_within_bounds(pieces) -> None:
    reading = read(b"\n".join(pieces))
    assert len(reading.gpus) <= MAX_GPUS
    for gpu in reading.gpus:
        assert 0 <= gpu.index < 1000 and len(gpu.uuid) <= 80 and len(gpu.name.encode()) <= 256
        assert gpu.name.isprintable() and gpu.values
        for name, value in gpu.values.items():
            low, high = BOUNDS[name]
            assert low <= value <= high
