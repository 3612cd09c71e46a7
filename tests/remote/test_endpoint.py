# SPDX-License-Identifier: Apache-2.0
"""Endpoints as people write them."""

from __future__ import annotations

import pytest

from hypervisor.scraper.endpoint import Endpoint, endpoint_of
from hypervisor.scraper.errors import AddressError


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("vsock://42:9402", Endpoint("vsock", "42", 9402)),
        ("vsock://4294967294:4294967294", Endpoint("vsock", "4294967294", 4294967294)),
        ("hvsock:///run/fc/v.sock:52", Endpoint("hvsock", "/run/fc/v.sock", 52)),
        ("unix:///run/agent.sock", Endpoint("unix", "/run/agent.sock")),
        ("tcp://10.0.0.1:9402", Endpoint("tcp", "10.0.0.1", 9402)),
        ("tcp://[::1]:9402", Endpoint("tcp", "::1", 9402)),
    ],
)
def test_endpoints(text, endpoint) -> None:
    assert endpoint_of(text) == endpoint
    assert str(endpoint) == text


@pytest.mark.parametrize(
    "text", ["vsock://:9402", "vsock://-1:9402", "vsock://3:9402", "tcp://:80", "unix:///a"]
)
def test_who_listens_may_leave_out_who_they_are(text) -> None:
    endpoint = endpoint_of(text, is_listening=True)
    assert endpoint_of(str(endpoint), is_listening=True) == endpoint


@pytest.mark.parametrize(
    "text",
    ["", "42:9402", "vsock://42", "vsock://:9402", "vsock://0:9402", "vsock://4294967295:1", "vsock://x:1",
     "vsock://42:0", "vsock://42:99999999999", "vsock://٣:1", "hvsock://v.sock:1", "hvsock:///v.sock",
     "unix://agent.sock", "unix:///" + "x" * 107, "tcp://:80", "tcp://h:65536", "http://h:1", "vsock://42:1\n",
     "vsock://4 2:1"],
)  # fmt: skip
def test_what_is_no_endpoint_is_refused(text) -> None:
    with pytest.raises(AddressError) as caught:
        endpoint_of(text)
    assert repr(text) in str(caught.value)


def test_nobody_listens_on_a_monitors_socket() -> None:
    with pytest.raises(AddressError):
        endpoint_of("hvsock:///v.sock:1", is_listening=True)
