# SPDX-License-Identifier: Apache-2.0
"""The built-in workload, behind `gpulimit load`: kernels of a given length, memory of every kind, and counts.

It runs alike on a real card and on the simulated driver, which knows these kernels by name.
`settings` says what to do, `kernels` holds the PTX, `allocations` takes memory, `launcher` keeps a bounded
queue of work on the GPU, and `result` adds up.

`job` starts the ranks of a job (`rank`), whose kernels wait for each other (`waiting`); `await_rounds` has
one kernel wait for a later launch.
"""

from __future__ import annotations
