# SPDX-License-Identifier: Apache-2.0
"""What `gpulimit demo` shows: tenants of one GPU with unequal quotas, each getting what it was promised.

`cast` says who takes part and starts them, `stage` is the GPU and the books of all tenants, `screen` draws,
`story` is what happens in order, and `verdict` compares what was promised with what was seen.
"""

from __future__ import annotations
