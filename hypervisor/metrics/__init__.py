# SPDX-License-Identifier: Apache-2.0
"""The metric catalogue, the snapshot, and the aggregation of observations into it. Pure.

Belongs here: names, units, sums over processes. Does not: reading (`collector`), text (`exporter`).
Begin with `catalogue`, from which docs/metrics.md is generated.
"""

from __future__ import annotations
