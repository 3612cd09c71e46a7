# SPDX-License-Identifier: Apache-2.0
"""The tenants, processes, quotas and GPUs of this node, and their recovery after a restart.

Belongs here: admission, registration, commands, saved state. Does not: GPU time (`scheduler`), pods (`pods`).
Begin with `node`; `registry` and `quota_policy` decide and are pure.
"""

from __future__ import annotations
