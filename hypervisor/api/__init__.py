# SPDX-License-Identifier: Apache-2.0
"""The daemon's HTTP interface on the Unix socket and, if configured, on TCP.

Belongs here: routes, request parsing, bounds, JSON. Does not: what a call does, which is in `node`.
Begin with `server`; `service` joins its routes with the node.
"""

from __future__ import annotations
