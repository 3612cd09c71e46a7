# SPDX-License-Identifier: Apache-2.0
"""A real collector and guests of all sorts behind monitors' sockets."""

from __future__ import annotations

import time

import pytest

from hypervisor.guests import collector_main as collect
from tests.guests import pages
from tests.guests.conftest import VALUES, of, series
from tests.guests.pages import ALL, UUID
from tests.remote.exporters import bomb, drip, endless, hang, head, page

FAILURES = "gpulimit_guest_scrape_failures_total"
DROPPED = "gpulimit_guest_samples_dropped_total"


def test_every_figure_of_every_exporter_is_served_under_the_machines_name(machine, collector) -> None:
    made = [
        machine("own", page(pages.own())),
        machine("dcgm", page(pages.dcgm())),
        machine("smi", page(pages.nvidia_gpu_exporter())),
    ]
    served = collector(*made)
    found = served.until(lambda p: p if sum(of(p, "gpulimit_guest_up")) == 3 else None)
    for name, value in ALL.items():
        rows = {labels["name"]: (labels, v) for labels, v in found.of(f"kubevirt_vmi_gpu_{name}")}
        for one in made:
            if (one.name, name) == ("dcgm", "running_processes"):
                continue
            labels, seen = rows[one.name]
            assert seen == pytest.approx(value)
            assert labels == {
                "namespace": "ml",
                "name": one.name,
                "node": "node-1",
                "gpu_index": "0",
                "gpu_uuid": UUID.format(1),
                "gpu_name": "NVIDIA A100-SXM4-40GB",
            }
    assert of(found, "gpulimit_guest_gpu_status") == [0], "of our own agent alone"
    assert of(found, "gpulimit_guest_targets", source="file") == [3]
    assert all(0 <= v < 2 for v in of(found, "gpulimit_guest_scrape_duration_seconds"))
    for last in of(found, "gpulimit_guest_last_success_timestamp_seconds"):
        assert abs(time.time() - last) < 10
    assert served.page("/readyz")[0] == served.page("/healthz")[0] == 200


@pytest.mark.timeout(120)
def test_healthy_guests_are_complete_and_on_time_beside_hung_hostile_and_restarting_ones(
    machine, collector
) -> None:
    healthy = [machine(f"good-{n}", page(pages.own(n + 1))) for n in range(40)]
    flood = endless(b'gpulimit_gpu_power_watts{gpu_uuid="GPU-x"} 1\n' * 1000, head())
    forged = pages.own(
        99, more='kubevirt_vmi_gpu_utilization_percent{name="good-0",namespace="ml"} 666\n' * 50
    )
    others = [
        *(
            machine(f"hung-{n}", behaviour)
            for n, behaviour in enumerate((hang, hang, hang, drip(head(), 0.2)))
        ),
        machine("hung-4", None),
        machine("hostile-0", flood),
        machine("hostile-1", page(forged)),
    ]
    restarting = [machine(f"restarting-{n}", page(pages.own(200 + n, boot_id=f"b{n}"))) for n in range(3)]
    served = collector(*healthy, *others, *restarting, period="1s", timeout="4s")
    names = [one.name for one in healthy]
    served.until(lambda p: all(series(p, name) == VALUES for name in names), within_s=30)
    end = time.monotonic() + 6
    rounds = 0
    while time.monotonic() < end:
        for n, one in enumerate(restarting):
            fresh = page(pages.own(200 + n, boot_id=f"b{n}-{rounds}"))
            one.stop() if rounds % 2 == 0 else one.start(fresh)
        found = served.metrics()
        for name in names:
            assert series(found, name) == VALUES and of(found, "gpulimit_guest_up", name=name) == [1]
            (last,) = of(found, "gpulimit_guest_last_success_timestamp_seconds", name=name)
            assert time.time() - last < 1.0 + 7.0, "asked every second; the rest is for a slow machine"
        assert max(of(found, "kubevirt_vmi_gpu_utilization_percent")) == pytest.approx(87)
        rounds += 1
        time.sleep(0.7)
    assert rounds > 3
    for n in range(5):
        assert of(found, "gpulimit_guest_up", name=f"hung-{n}") == [0] and not series(found, f"hung-{n}")
    for name, reason in (("hung-0", "timeout"), ("hung-4", "refused"), ("hostile-0", "too_large")):
        served.until(lambda p, n=name, r=reason: of(p, FAILURES, name=n, reason=r))
    assert of(found, "gpulimit_guest_samples_dropped_total", name="hostile-1", reason="not_listed")[0] >= 1
    assert of(found, "gpulimit_guest_samples_dropped_total", name="hostile-1", reason="duplicate")[0] >= 49
    for n, one in enumerate(restarting):
        one.start(page(pages.own(200 + n, boot_id=f"last-{n}")))
    served.until(lambda p: all(series(p, one.name) == VALUES for one in restarting), within_s=45)


def test_a_guest_that_hangs_is_shown_through_one_failure_and_then_gone(machine, collector) -> None:
    one = machine("a", page(pages.own()))
    served = collector(one, timeout="1s")
    served.until(lambda p: series(p, "a") == VALUES)
    one.answer(hang)
    late = served.until(lambda p: p if of(p, "gpulimit_guest_up", name="a") == [0] else None)
    assert series(late, "a") == VALUES
    served.until(lambda p: series(p, "a") == 0)
    assert of(served.metrics(), "gpulimit_guest_last_success_timestamp_seconds", name="a")
    one.answer(page(pages.own()))
    served.until(lambda p: series(p, "a") == VALUES)


def test_a_machine_with_vsock_and_no_gpu(machine, collector) -> None:
    no_driver = b'gpulimit_guest_agent_info{version="1",boot_id="b"} 1\ngpulimit_guest_agent_status 12\n'
    served = collector(machine("none", page(no_driver)), machine("no-agent", None))
    found = served.until(lambda p: p if of(p, "gpulimit_guest_gpu_status", name="none") == [12] else None)
    assert of(found, "gpulimit_guest_up", name="none") == [1] and series(found, "none") == 0
    found = served.until(
        lambda p: p if of(p, "gpulimit_guest_scrape_failures_total", name="no-agent") else None
    )
    assert of(found, "gpulimit_guest_up", name="no-agent") == [0] and series(found, "no-agent") == 0


def test_a_guest_that_moves_to_another_address_keeps_its_name_and_counters(machine, collector) -> None:
    first = machine("a", page(pages.own(1)))
    served = collector(first)
    served.until(lambda p: series(p, "a") == VALUES)
    first.answer(None)
    served.until(lambda p: of(p, "gpulimit_guest_scrape_failures_total", name="a"))
    second = machine("elsewhere", page(pages.own(2, boot_id="b2")))
    second.name = "a"
    served.ask(second)
    metric = "kubevirt_vmi_gpu_temperature_celsius"
    found = served.until(lambda p: p if of(p, metric, name="a", gpu_uuid=UUID.format(2)) else None)
    assert series(found, "a") == VALUES
    assert of(found, "gpulimit_guest_scrape_failures_total", name="a")[0] >= 1
    served.ask()
    served.until(lambda p: not of(p, "gpulimit_guest_up"))


def test_who_is_given_anothers_address_is_not_shown_as_that_other(machine, collector) -> None:
    """The list still says `a` when another machine answers there: nothing is shown until the list has
    changed; then the list's word holds.
    """
    one = machine("a", page(pages.own(1, boot_id="b1")))
    served = collector(one)
    served.until(lambda p: series(p, "a") == VALUES)
    one.answer(page(pages.own(2, boot_id="b2")))
    uuids = set()

    def unconfirmed(found) -> bool:
        uuids.update(labels["gpu_uuid"] for labels, _ in found.of("kubevirt_vmi_gpu_temperature_celsius"))
        return bool(of(found, "gpulimit_guest_samples_dropped_total", reason="unconfirmed"))

    found = served.until(lambda p: p if unconfirmed(p) else None)
    assert uuids == {UUID.format(1)} and series(found, "a") == 0
    one.name = "b"
    served.ask(one)
    found = served.until(lambda p: p if series(p, "b") == VALUES else None)
    assert series(found, "a") == 0 and not of(found, "gpulimit_guest_up", name="a")


UTILISATION = "kubevirt_vmi_gpu_utilization_percent"


@pytest.mark.parametrize("boot_ids", [("b1", "b2"), ("", "")], ids=["our agent", "another exporter"])
def test_machines_that_swap_addresses_are_not_mistaken_while_the_list_is_late(
    machine, collector, boot_ids
) -> None:
    a, b = machine("a"), machine("b")
    pages_of = {
        one: page(pages.own(n, boot_id=boot))
        for n, (one, boot) in enumerate(zip("ab", boot_ids, strict=True))
    }
    a.answer(pages_of["a"]), b.answer(pages_of["b"])
    served = collector(a, b)
    served.until(lambda p: series(p, "a") == series(p, "b") == VALUES)
    a.answer(pages_of["b"]), b.answer(pages_of["a"])

    def mistaken(found) -> list[str]:
        rows = [labels for labels, _ in found.of(UTILISATION)]
        return [row["name"] for row in rows if row["gpu_uuid"] != UUID.format("ab".index(row["name"]))]

    served.until(lambda p: sum(of(p, DROPPED, reason="unconfirmed")) and not series(p, "a") + series(p, "b"))
    for _ in range(3):  # the list is written and read again, as it was
        before = sum(of(served.metrics(), DROPPED, reason="unconfirmed"))
        served.ask(a, b)
        later = served.until(
            lambda p, n=before: p if sum(of(p, DROPPED, reason="unconfirmed")) >= n + 6 * VALUES else None
        )
        assert not mistaken(later) and series(later, "a") + series(later, "b") == 0
    a.name, b.name = "b", "a"
    served.ask(a, b)
    found = served.until(lambda p: p if series(p, "a") == series(p, "b") == VALUES else None)
    assert not mistaken(found)
    assert served.log.read_text().count("another machine answers there") == 2


def test_machines_that_swap_addresses_and_back_are_shown_again(machine, collector) -> None:
    a, b = machine("a", page(pages.own(0, boot_id="b0"))), machine("b", page(pages.own(1, boot_id="b1")))
    served = collector(a, b)
    served.until(lambda p: series(p, "a") == series(p, "b") == VALUES)
    a.answer(page(pages.own(1, boot_id="b1")))
    served.until(lambda p: series(p, "a") == 0)
    a.answer(page(pages.own(0, boot_id="b0")))
    found = served.until(lambda p: p if series(p, "a") == VALUES else None)
    assert of(found, "kubevirt_vmi_gpu_temperature_celsius", name="a", gpu_uuid=UUID.format(0))


def test_machines_with_one_gpu_after_the_other_are_not_mistaken(machine, collector) -> None:
    """B is known at its address, then answers at a's with the GPU that a had: its boot id gives it away."""
    a, b = machine("a", page(pages.own(0, boot_id="b0"))), machine("b", page(pages.own(1, boot_id="b1")))
    served = collector(a, b)
    served.until(lambda p: series(p, "a") == series(p, "b") == VALUES)
    b.answer(None)
    a.answer(page(pages.own(0, boot_id="b1")))
    served.until(lambda p: series(p, "a") == 0)
    served.ask(a, b)
    later = sum(of(served.metrics(), DROPPED, name="a", reason="unconfirmed")) + 8 * VALUES
    found = served.until(
        lambda p: p if sum(of(p, DROPPED, name="a", reason="unconfirmed")) >= later else None
    )
    assert series(found, "a") == 0


def test_of_two_collectors_on_a_node_one_asks_and_the_other_takes_over(machine, collector) -> None:
    one = machine("a", page(pages.own()))
    first = collector(one)
    first.until(lambda p: of(p, "gpulimit_guest_collector_active") == [1])
    second = collector(one)
    found = second.until(lambda p: p if of(p, "gpulimit_guest_collector_active") == [0] else None)
    assert not of(found, "gpulimit_guest_up") and second.page("/readyz")[0] == 200
    first.until(lambda p: series(p, "a") == VALUES)
    first.stop()
    second.until(lambda p: series(p, "a") == VALUES)
    assert of(second.metrics(), "gpulimit_guest_collector_active") == [1]


def test_a_port_that_is_taken_ends_a_collector_with_its_name(machine, collector) -> None:
    first = collector(machine("a", page(pages.own())))
    first.until(lambda p: of(p, "gpulimit_guest_collector_active"))
    port = int(first.address.rpartition(":")[2])
    second = collector(at_port=port, lock="")
    assert second.process.wait(20) == 2
    assert f"tcp://127.0.0.1:{port}: Address already in use" in second.log.read_text()


def test_a_gzip_bomb_costs_nothing(machine, collector) -> None:
    served = collector(
        machine("bomb", page(bomb(60 << 20), "Content-Encoding: gzip")), machine("a", page(pages.own()))
    )
    served.until(lambda p: of(p, "gpulimit_guest_scrape_failures_total", name="bomb", reason="too_large"))
    found = served.until(lambda p: p if series(p, "a") == VALUES else None)
    (memory,) = of(found, "process_resident_memory_bytes")
    assert memory < 200 << 20


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"guests": ""}, "guests: is not set"),
        ({"guests": "/absent.toml"}, "/absent.toml: No such file"),
        ({"kubevirt": "on"}, "node: is needed"),
        ({"kubevirt": "on", "node": "n"}, "kube_api"),
        ({"kubevirt": "yes"}, "--kubevirt"),
        ({"period": "1"}, "--period"),
        ({"period": "100ms"}, "--period"),
        ({"metrics_addr": ""}, "metrics_addr: is empty"),
        ({"port": "0"}, "--port"),
        ({"guests": "/absent.toml", "lock": "/proc/lock"}, "lock: /proc/lock"),
    ],
)
def test_options_that_cannot_be_used_are_named(options, named, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(collect.log, "set_up", lambda **_: None)
    settings = {"lock": str(tmp_path / "lock"), "metrics_addr": "127.0.0.1:1", **options}
    flags = [f for name, value in settings.items() for f in (f"--{name.replace('_', '-')}", value)]
    assert collect.main(flags) == 2
    assert named in capsys.readouterr().err


def test_a_variable_that_is_no_option_is_refused(capsys, monkeypatch) -> None:
    monkeypatch.setenv("GPULIMIT_COLLECTOR_GUEST", "x")
    assert collect.main([]) == 2
    assert "GPULIMIT_COLLECTOR_GUEST: no such option" in capsys.readouterr().err
