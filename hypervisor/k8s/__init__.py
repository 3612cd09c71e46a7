# SPDX-License-Identifier: Apache-2.0
"""The protocol of the Kubernetes API server: access, requests, watches, Events.

Belongs here: HTTP to the API server. Does not: what a pod means (`pods`).
Begin with `client`; `watch` keeps a list up to date.
"""

from __future__ import annotations
