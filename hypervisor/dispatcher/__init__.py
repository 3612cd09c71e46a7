# SPDX-License-Identifier: Apache-2.0
"""Thread that runs the schedulers and publishes their grants in shared memory.

Belongs here: the loop, doorbells, reading usage, writing grants. Does not: decisions (`scheduler`).
Begin with `dispatcher`; `run_queue` is one GPU.
"""

from __future__ import annotations
