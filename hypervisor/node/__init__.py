# SPDX-License-Identifier: Apache-2.0
"""The tenants, processes, quotas and GPUs of this node, and their recovery after a restart.

Belongs here: admission, registration, commands, saved state. Does not: GPU time (`scheduler`), pods (`pods`).
Begin with `node`, which lists the parts. `registration` admits processes, `recovery` restores tenants after a
restart, `tenant_removal` forgets them; `registry` and `quota_policy` decide and are pure.
"""

from __future__ import annotations
