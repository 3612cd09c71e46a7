# SPDX-License-Identifier: Apache-2.0
"""The file that names guests."""

from __future__ import annotations

import socket
import time

import pytest

from hypervisor.errors import ConfigError
from hypervisor.guests.guest_file import GuestFile, read_targets
from hypervisor.guests.target import Target
from hypervisor.scraper.endpoint import Endpoint

GUEST = '[[guest]]\nname = "a"\naddress = "vsock://42:9402"\n'


def test_what_it_may_say(tmp_path) -> None:
    path = tmp_path / "guests.toml"
    path.write_text(
        GUEST + '[[guest]]\nnamespace = "ml"\nname = "a"\naddress = "hvsock:///run/v.sock:52"\n'
        'token_file = "/t"\nca_file = "/c"\nserver_name = "n"\n'
    )
    host = socket.gethostname()
    assert read_targets(path) == (
        Target("default", "a", host, Endpoint("vsock", "42", 9402)),
        Target(
            "ml",
            "a",
            host,
            Endpoint("hvsock", "/run/v.sock", 52),
            token_file="/t",  # noqa: S106
            ca_file="/c",
            server_name="n",
        ),
    )
    path.write_text('node = "n1"\n' + GUEST)
    assert read_targets(path)[0].node == "n1"
    path.write_text("")
    assert read_targets(path) == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[", "guests"),
        ("nodes = 1", "nodes"),
        ("node = 1", "node"),
        ('guest = "x"', "guest"),
        ("guest = [1]", "guest[0]"),
        ('[[guest]]\nname = "a"', "guest[0].address"),
        ('[[guest]]\naddress = "vsock://4:1"', "guest[0].name"),
        (GUEST + "cid = 4", "guest[0].cid"),
        (GUEST + 'token_file = ""', "guest[0].token_file"),
        (GUEST.replace('"a"', '"a\\u001b[2J"'), "guest[0].name"),
        (GUEST.replace("vsock://42", "vsock://0"), "guest[0].address"),
        (GUEST.replace("vsock://42:9402", "http://h"), "guest[0].address"),
        (GUEST + GUEST.replace("42", "43"), "there twice"),
    ],
)
def test_what_it_may_not_say_is_named(tmp_path, text, named) -> None:
    path = tmp_path / "guests.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_targets(path)
    assert named in str(caught.value) and str(path) in str(caught.value)


def test_a_file_that_breaks_changes_nothing(tmp_path) -> None:
    path = tmp_path / "guests.toml"
    path.write_text(GUEST)
    source = GuestFile(str(path))
    before, at_s = source.targets, source.confirmed_at_s
    path.write_text("[")
    source.reread()
    assert source.targets == before and not source.is_up and source.confirmed_at_s == at_s
    path.unlink()
    source.reread()
    assert source.targets == before and not source.is_up
    time.sleep(0.01)
    path.write_text(GUEST.replace('"a"', '"b"'))
    source.reread()
    assert [t.name for t in source.targets] == ["b"] and source.is_up and source.confirmed_at_s > at_s


def test_without_a_file_it_does_not_start(tmp_path) -> None:
    with pytest.raises(ConfigError) as caught:
        GuestFile(str(tmp_path / "absent"))
    assert "absent" in str(caught.value)
