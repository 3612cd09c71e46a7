# SPDX-License-Identifier: Apache-2.0
"""The daemon collects guests' metrics too, where it is told to."""

from __future__ import annotations

import pytest

from hypervisor.scraper.parser import parse
from tests.daemon.conftest import daemon, daemon_env, eventually, run_dir
from tests.guests import pages
from tests.guests.conftest import VALUES, listing, of, series
from tests.metrics.conftest import get
from tests.remote.exporters import hang, page

__all__ = ["daemon", "daemon_env", "run_dir"]


def test_guests_are_on_the_daemons_page(daemon, machine, folder) -> None:
    path = folder / "guests.toml"
    path.write_text(listing(machine("a", page(pages.own())), machine("b", hang)))
    one = daemon(guests=str(path), nvml_interval="250ms")

    def found():
        read = parse(get(f"http://127.0.0.1:{one.metrics_port}/metrics")[1].encode())
        return read if series(read, "a") == VALUES else None

    seen = eventually(found, within_s=20)
    assert of(seen, "gpulimit_guest_collector_active") == [1] and of(seen, "gpulimit_up") == [1]
    assert of(seen, "gpulimit_guest_targets", source="file") == [2]


@pytest.mark.parametrize("guests", ["/absent.toml", "kubevirt"])
def test_guests_that_cannot_be_found_are_named(daemon, guests) -> None:
    one = daemon(guests=guests, is_awaited=False)
    assert one.process.wait(20) == 2
    assert ("/absent.toml" if guests != "kubevirt" else "kube_api") in one.log.read_text()
