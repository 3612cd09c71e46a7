# SPDX-License-Identifier: Apache-2.0
"""Parses addresses of exporters. Pure."""

from __future__ import annotations

from yarl import URL

from hypervisor.scraper.errors import AddressError

PORT = 9402
PATH = "/metrics"


def url_of(address: str, *, port: int = PORT) -> URL:
    """Return the URL of HOST, HOST:PORT, [V6]:PORT, or either behind http:// or https://.

    The page is always /metrics. Raises AddressError.
    """
    text = address.strip()
    if not text.isprintable() or " " in text:
        raise AddressError(address, "has a blank or a control character in it")
    try:
        url = URL(text if "://" in text else f"http://{text}")
        host, given = url.host, url.explicit_port
    except ValueError as error:
        raise AddressError(address, str(error)) from error
    if url.scheme not in ("http", "https"):
        raise AddressError(address, f"{url.scheme}:// is neither http:// nor https://")
    if not host or not all(c.isalnum() or c in ".-_:%" for c in host):
        raise AddressError(address, "names no host")
    if url.user is not None or url.password is not None:
        raise AddressError(address, "a user or a password cannot be given here")
    if url.raw_path not in ("", "/", PATH) or url.query_string or url.fragment:
        raise AddressError(address, f"the page is always {PATH}")
    if given == 0:
        raise AddressError(address, "port 0 is no port")
    return URL.build(scheme=url.scheme, host=host, port=given or port, path=PATH)
