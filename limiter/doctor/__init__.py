# SPDX-License-Identifier: Apache-2.0
"""Checks of `gpulimit doctor`.

`machine` needs no GPU; `driver` asks the driver, in child processes (`probe`), so that a driver which hangs
or crashes costs one line of the answer and not the answer.  Nothing here changes anything on the machine.
"""

from __future__ import annotations
