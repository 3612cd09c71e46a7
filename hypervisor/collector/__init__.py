# SPDX-License-Identifier: Apache-2.0
"""Reads every tenant's usage and every GPU's state once a period, and publishes one metrics snapshot.

Belongs here: reading. Does not: aggregation (`metrics`), rendering (`exporter`).
Begin with `collector`; `tenants` reads one tenant's segment.
"""

from __future__ import annotations
