# SPDX-License-Identifier: Apache-2.0
"""The node daemon: divides GPU time between tenants, keeps their quotas, watches the GPUs.

`daemon` is the composition root: begin there. A package imports only packages below its own layer
(docs/architecture.md); the docstring of each package says what belongs in it. `limiter` never imports any.
"""

from __future__ import annotations
