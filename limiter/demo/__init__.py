# SPDX-License-Identifier: Apache-2.0
"""`gpulimit demo`: a daemon and tenants of one GPU with unequal parts, each getting what it was
promised, also when one of them is killed and when the daemon is.

`cast` says who takes part and starts them, `host` is the daemon, `stage` the books of all tenants, `screen`
draws, `story` is what happens in order, and `verdict` compares what was promised with what was seen.
"""

from __future__ import annotations
