# SPDX-License-Identifier: Apache-2.0
"""The pods of this node, their quotas, and the tenants made from them.

Belongs here: annotations and pod identity. Does not: the API server's protocol (`k8s`).
Begin with `tenants`; `quota` reads annotations and is pure.
"""

from __future__ import annotations
