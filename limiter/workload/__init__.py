# SPDX-License-Identifier: Apache-2.0
"""The built-in workload, behind `gpulimit load`: kernels of a given length, memory of every kind, and counts.

It runs in the same way on a real card and on the simulated driver, which knows these kernels by name.
`settings` holds the options, `kernels` the PTX.  `allocations` allocates memory, `launcher` keeps a bounded
queue of work on the GPU, and `result` sums up.

`job` starts the ranks of a job (`rank`), whose kernels wait for each other (`waiting`); in `await_rounds`, a
kernel waits for a later launch.
"""

from __future__ import annotations
