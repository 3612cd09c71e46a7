# SPDX-License-Identifier: Apache-2.0
"""vGPUs and MIG devices: from values to a page and back again, and what hostile pages cannot do."""

from __future__ import annotations

import dataclasses
import re
import string
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypervisor.exporter.compat import ALIASES
from hypervisor.exporter.exporter import Exporter
from hypervisor.exporter.families import families_of
from hypervisor.exporter.labels import Labels
from hypervisor.metrics.catalogue import (
    CATALOGUE,
    MIG_MODE_SECTION,
    MIG_SECTION,
    VGPU_INSTANCE_SECTION,
    VGPU_SECTION,
)
from hypervisor.metrics.snapshot import Snapshot
from limiter import mig, partition_metrics, vgpu
from limiter.mig import MigInstance
from limiter.partition_metrics import MAX_GPUS, MAX_INSTANCES, PartitionReader
from limiter.vgpu import HOST_MODES, VgpuHost, VgpuInstance
from tests.metrics import full
from tests.metrics.partitioned import CARD, HOST, MIG, VGPU, hardened_samples, page, read, samples

SECTIONS = (VGPU_SECTION, VGPU_INSTANCE_SECTION, MIG_MODE_SECTION, MIG_SECTION)


def is_known(value: object) -> bool:
    return value is not None and value != "" and value != ()


@pytest.mark.parametrize("example", [VGPU, HOST, MIG, CARD], ids=lambda example: type(example).__name__)
def test_the_examples_know_every_field(example: Any) -> None:
    """A field that is added must be filled in, and then the tests below fail until it is served and read."""
    assert all(is_known(getattr(example, field.name)) for field in dataclasses.fields(example))
    for field in dataclasses.fields(example):  # and not by the value that it has when nobody says anything
        assert getattr(example, field.name) != field.default


PARSERS = {"prometheus_client": samples, "hardened": hardened_samples}


@pytest.mark.parametrize("parser", PARSERS)
def test_every_field_survives_the_page(parser: str) -> None:
    reader = read(page(HOST, CARD), PARSERS[parser])
    assert reader.vgpu_hosts() == (HOST,)
    assert reader.mig_gpus() == (CARD,)
    assert reader.dropped == 0


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_every_family_is_on_the_page(section) -> None:
    text = page(HOST, CARD)
    for metric in section.metrics():
        assert re.search(rf"^{metric.full_name}\{{", text, re.MULTILINE), metric.name


@pytest.mark.parametrize(
    ("example", "field"),
    [(e, f.name) for e in (VGPU, MIG) for f in dataclasses.fields(e) if f.name not in ("vgpu_id", "index")],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_field_that_is_not_known_is_no_sample_and_not_0(example: Any, field: str) -> None:
    default = next(f.default for f in dataclasses.fields(example) if f.name == field)
    poorer = replace(example, **{field: default})
    if isinstance(example, VgpuInstance):
        got: Any = read(page(replace(HOST, instances=(poorer,)))).vgpu_hosts()
        assert got == (replace(HOST, instances=(poorer,)),)
    else:
        got = read(page(replace(CARD, instances=(poorer,)))).mig_gpus()
        assert got == (replace(CARD, instances=(poorer,)),)


@pytest.mark.parametrize(
    "field", ["arr_mode", "policy", "timeslice_seconds", "overruns", "gpu_name", "instance", "host"]
)
def test_a_field_of_the_card_that_is_not_known_is_absent(field: str) -> None:
    default = next(f.default for f in dataclasses.fields(HOST) if f.name == field)
    poorer = replace(HOST, **{field: default})
    if field == "arr_mode":
        poorer = replace(poorer, is_arr_supported=None)  # it is a label of that one
    assert read(page(poorer)).vgpu_hosts() == (poorer,)


ratios = st.none() | st.floats(0, 1).map(lambda x: round(x, 6))
sizes = st.none() | st.integers(0, 1 << 48)
texts = st.text(st.characters(exclude_categories=("C", "Z")), max_size=60)
vgpus = st.builds(
    VgpuInstance,
    vgpu_id=st.integers(0, (1 << 32) - 1),
    uuid=texts,
    type_name=texts,
    vm_id=texts,
    utilization_ratio=ratios,
    memory_utilization_ratio=ratios,
    encoder_utilization_ratio=ratios,
    decoder_utilization_ratio=ratios,
    memory_used_bytes=sizes,
    memory_total_bytes=sizes,
    is_active=st.booleans(),  # or nothing would tell of it at all
    license_state=st.sampled_from(["", *vgpu.LICENSE_STATES.values()]),
    guest_driver=texts,
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(vgpus, max_size=4, unique_by=lambda v: v.vgpu_id),
    st.sampled_from(sorted(HOST_MODES)),
    st.sampled_from(sorted(vgpu.POLICIES)),
    st.sampled_from([*sorted(vgpu.ARR_MODES), None]),
)
def test_whatever_names_and_figures_are_they_come_back(instances, mode, policy, arr) -> None:
    ordered = tuple(sorted(instances, key=lambda v: v.vgpu_id))
    host = replace(HOST, instances=ordered, host_mode=mode, policy=policy, arr_mode=arr)
    if arr is None:
        host = replace(host, is_arr_supported=None)
    for parser in PARSERS.values():
        assert read(page(host), parser).vgpu_hosts() == (host,)


@pytest.mark.parametrize(
    "value",
    [
        'x",host="forged',
        "a,b=c",
        "a}b{c",
        "tab\tand\rreturn\nand escape \x1b[2J and C1 \x9b31m",
        'back\\slash\\n and "quotes"',
        "right-to-left \u202e and zero width \u200b",
        "界" * 200,
        "\ud800 half a character",
        "\u2028line\u2029and\x85next\x0b\x0c\x1c",
    ],
)
def test_what_a_virtual_machine_calls_itself_forges_nothing(value: str) -> None:
    """Neither another label, nor another line, nor a cursor's movement; cut at a whole character."""
    host = replace(HOST, instances=(replace(VGPU, vm_id=value, guest_driver=value),))
    text = page(host)
    (got,) = read(text).vgpu_hosts()
    (instance,) = got.instances
    assert (got.host, got.gpu_uuid) == (HOST.host, HOST.gpu_uuid)
    assert replace(instance, vm_id="", guest_driver="") == replace(VGPU, vm_id="", guest_driver="")
    assert all(c.isprintable() for c in instance.vm_id)
    assert len(instance.vm_id.encode()) <= 256
    assert not any(c in text for c in "\r\x1b\x9b\u202e\u200b\u2028\u2029\x85\x0b\x0c\x1c")
    assert text.count("\n") == page(HOST).count("\n") - 1  # one instance, whose only sample was its activity


def test_labels_are_whole_keys() -> None:
    """Names in full, so that `gpu_uuid` is not taken for another label that ends so."""
    line = next(x for x in page(HOST).splitlines() if x.startswith("gpulimit_vgpu_utilization_ratio{"))
    labels = re.findall(r'(\w+)="', line)
    assert labels == [
        *("gpu_uuid", "gpu_index", "gpu", "instance", "host"),
        *("vgpu_id", "vgpu_uuid", "vgpu_type", "vgpu_vm_id"),
    ]
    line = next(x for x in page(CARD).splitlines() if x.startswith("gpulimit_mig_instance_info{"))
    assert re.findall(r'(\w+)="', line) == [
        *("gpu_uuid", "gpu_index", "gpu", "instance", "host"),
        *("mig_instance", "mig_uuid", "mig_profile", "gpu_instance_id", "compute_instance_id"),
    ]


def test_all_families_name_the_card_alike() -> None:
    for section in SECTIONS:
        assert section.labels[:5] == VGPU_SECTION.labels, section.title


def test_labels_are_made_once_for_each_instance_and_not_for_each_family(monkeypatch) -> None:
    made = 0
    plain = Labels.__init__

    def counted(self: Labels, pairs: Any = ()) -> None:
        nonlocal made
        made += 1
        plain(self, pairs)

    monkeypatch.setattr(Labels, "__init__", counted)
    many = tuple(replace(VGPU, vgpu_id=n) for n in range(100))
    migs = tuple(replace(MIG, index=n) for n in range(50))
    page(replace(HOST, instances=many), replace(CARD, instances=migs))
    of_cards, infos = 3, 2
    assert made == of_cards + 100 * (1 + infos) + 50


def test_reading_takes_time_by_the_page_and_not_by_its_square() -> None:
    def seconds(cards: int) -> float:
        hosts = [
            replace(HOST, gpu_uuid=f"GPU-{n}", instances=tuple(replace(VGPU, vgpu_id=v) for v in range(16)))
            for n in range(cards)
        ]
        told = list(samples(page(*hosts)))
        best = 9.0
        for _ in range(3):
            begin = time.process_time()
            PartitionReader().take(told)
            best = min(best, time.process_time() - begin)
        return best

    assert seconds(200) < 40 * max(seconds(20), 1e-3)


def test_a_node_without_either_says_nothing() -> None:
    assert page() == page(*()) and "vgpu" not in page() and "mig" not in page()
    served = {f.name for f in families_of(Snapshot(), has_debug_labels=False)}
    assert not served & {m.full_name for section in SECTIONS for m in section.metrics()}


def test_tables_speak_of_fields_and_metrics_that_there_are() -> None:
    for table, kind in (
        (vgpu.HOST_FAMILIES, VgpuHost),
        (vgpu.INSTANCE_FAMILIES, VgpuInstance),
        (mig.INSTANCE_FAMILIES, MigInstance),
    ):
        fields = {f.name for f in dataclasses.fields(kind)}
        assert table.keys() <= fields
        assert set(table.values()) <= CATALOGUE.keys()
    assert {name for name, _ in vgpu.INSTANCE_INFOS.values()} | {mig.INFO} <= CATALOGUE.keys()


# ---- reading hostile pages ----


def labels(**more: str) -> dict[str, str]:
    return {"gpu_uuid": "GPU-1", "gpu_index": "0", "host": "a", **more}


def test_more_cards_and_instances_than_there_can_be_are_left_out_and_known_ones_go_on() -> None:
    reader = PartitionReader()
    used = "gpulimit_vgpu_memory_used_bytes"
    reader.take((used, labels(vgpu_id=str(n)), 1.0) for n in range(MAX_INSTANCES + 100))
    reader.take(("gpulimit_vgpu_host_mode", labels(gpu_uuid=f"GPU-{n}"), 1.0) for n in range(MAX_GPUS + 100))
    reader.take([(used, labels(vgpu_id="7"), 9.0)])
    hosts = reader.vgpu_hosts()
    assert len(hosts) == MAX_GPUS
    instances = {v.vgpu_id: v for h in hosts for v in h.instances}
    assert len(instances) == MAX_INSTANCES and instances[7].memory_used_bytes == 9
    assert reader.dropped == 100 + 100


def test_more_mig_devices_than_there_can_be_are_left_out() -> None:
    reader = PartitionReader()
    info = "gpulimit_mig_instance_info"
    for card in range(MAX_GPUS + 10):
        reader.take((info, labels(gpu_uuid=f"GPU-{card}", mig_instance=str(n)), 1.0) for n in range(80))
    cards = reader.mig_gpus()
    assert len(cards) <= MAX_GPUS
    assert sum(len(card.instances) for card in cards) == MAX_INSTANCES
    assert max(i.index for card in cards for i in card.instances) <= partition_metrics.MAX_MIG_INDEX


@pytest.mark.parametrize("number", ["", "-1", "4294967296", "9" * 4000, "1e3", "0x10", "٣", " 1", "NaN"])
def test_an_instance_needs_a_number(number: str) -> None:
    reader = PartitionReader()
    reader.take([("gpulimit_vgpu_active", labels(vgpu_id=number), 1.0)])
    assert reader.vgpu_hosts() == () and reader.dropped == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -1.0, 1.01, 4294967295.0])
def test_a_figure_that_cannot_be_is_not_known(value: float) -> None:
    reader = PartitionReader()
    reader.take([("gpulimit_vgpu_utilization_ratio", labels(vgpu_id="1"), value)])
    (host,) = reader.vgpu_hosts()
    assert host.instances[0].utilization_ratio is None
    assert reader.dropped == 1


def test_two_hosts_may_have_cards_of_one_uuid() -> None:
    reader = PartitionReader()
    for host in ("a", "b"):
        reader.take([("gpulimit_vgpu_host_mode", labels(host=host), 1.0)])
    assert [h.host for h in reader.vgpu_hosts()] == ["a", "b"]


def test_the_node_is_who_was_asked_and_not_who_it_says_it_is() -> None:
    reader = PartitionReader("asked")
    reader.take([("gpulimit_vgpu_host_mode", labels(host="forged"), 1.0)])
    assert [h.host for h in reader.vgpu_hosts()] == ["asked"]


def test_older_label_names_and_all_smis_families_are_understood() -> None:
    reader = PartitionReader()
    old = {"uuid": "GPU-1", "index": "3", "host": "a", "vgpu_id": "5"}
    reader.take(
        [
            ("all_smi_vgpu_host_mode", old, 1.0),
            ("all_smi_vgpu_scheduler_state", {**old, "arr_supported": "true"}, 2.0),
            ("all_smi_vgpu_scheduler_policy", old, 3.0),
            ("all_smi_vgpu_utilization", old, 42.0),
            ("all_smi_vgpu_memory_utilization", old, 45.0),
            ("all_smi_vgpu_memory_used_bytes", old, 1.0),
            ("all_smi_vgpu_memory_total_bytes", old, 2.0),
            ("all_smi_vgpu_active", old, 1.0),
            ("all_smi_gpu_mig_mode", old, 1.0),
            ("all_smi_mig_instance_memory_used_bytes", {**old, "mig_instance": "2"}, 1.0),
        ]
    )
    (host,) = reader.vgpu_hosts()
    assert (host.gpu_index, host.host_mode, host.arr_mode, host.policy) == (3, "sriov", 2, 3)
    assert host.is_arr_supported is True
    assert host.instances == (
        VgpuInstance(
            5,
            utilization_ratio=pytest.approx(0.42),
            memory_utilization_ratio=pytest.approx(0.45),
            memory_used_bytes=1,
            memory_total_bytes=2,
            is_active=True,
        ),
    )
    (card,) = reader.mig_gpus()
    assert card.is_enabled and card.instances == (MigInstance(2, memory_used_bytes=1),)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [m.full_name for section in SECTIONS for m in section.metrics()] + ["vgpu_", "mig_"]
            ),
            st.dictionaries(
                st.sampled_from(["gpu_uuid", "gpu_index", "host", "vgpu_id", "mig_instance", "state"]),
                st.text(string.hexdigits, max_size=12) | st.text(max_size=20),
            ),
            st.floats(),
        ),
        max_size=30,
    )
)
def test_no_sample_whatever_it_says_breaks_the_reader(told) -> None:
    reader = PartitionReader()
    reader.take(told)
    for host in reader.vgpu_hosts():
        assert all(c.isprintable() for c in host.gpu_uuid + host.host)
    reader.mig_gpus()


def test_the_table_of_host_modes_is_the_only_one() -> None:
    assert HOST_MODES == {"non_sriov": 0, "sriov": 1, "disabled": 2}
    for mode, number in HOST_MODES.items():
        line = next(x for x in page(replace(HOST, host_mode=mode)).splitlines() if "host_mode=" in x)
        assert line.endswith(f'host_mode="{mode}"}} {number}')


# ---- for all-smi ----

ALL_SMI_LINE = re.compile(r"^all_smi_([^{]+)\{([^}]+)\} ([\d.]+)$")
"""How it reads a line: no exponents, no signs, and no brace in a label."""


def test_all_smis_page_is_readable_by_all_smi_and_says_the_same() -> None:
    awkward = replace(VGPU, vm_id='a}b{c",host="forged', utilization_ratio=0.07, memory_used_bytes=1 << 40)
    host = replace(HOST, instances=(awkward,))
    tiny = replace(CARD, instances=(replace(MIG, utilization_ratio=1e-7),))
    made = replace(full.snapshot(), vgpu_hosts=(host,), mig_gpus=(tiny,), node="node-7")
    exporter = Exporter(compat=["all-smi"])
    exporter.publish(made)
    lines = [line for line in exporter.page("", "")[0].decode().split("\n") if line.startswith("all_smi_")]
    told: list[tuple[str, dict[str, str], float]] = []
    for line in lines:
        match = ALL_SMI_LINE.match(line)
        assert match and len(match[2]) <= 1024, line
        told += samples(line + "\n")
    served = {name for name, _, _ in told}
    assert served == {alias.name for alias in ALIASES["all-smi"]}
    for name, has, _ in told:
        if name.startswith("all_smi_gpu_") and name != "all_smi_gpu_mig_mode":
            assert has["gpu"] == "NVIDIA H100 80GB HBM3" and has["instance"] == "node-7", name
    reader = PartitionReader()
    reader.take(told)
    (vgpu_host,), (card,) = reader.vgpu_hosts(), reader.mig_gpus()
    assert vgpu_host.host == HOST.host
    assert (vgpu_host.host_mode, vgpu_host.policy, vgpu_host.arr_mode) == ("sriov", 1, 2)
    (instance,) = vgpu_host.instances
    assert instance.vm_id == 'a)b{c",host="forged'
    assert instance.utilization_ratio == pytest.approx(0.07) and instance.memory_used_bytes == 1 << 40
    assert card.is_enabled and card.instances[0].memory_total_bytes == MIG.memory_total_bytes
