# SPDX-License-Identifier: Apache-2.0
"""Checks of `gpulimit doctor`.

`machine` needs no GPU.  `driver` calls the driver in child processes (`probe`), so that a driver that hangs
or crashes only costs one line of the result.  No check changes anything on the machine.
"""

from __future__ import annotations
