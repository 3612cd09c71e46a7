# SPDX-License-Identifier: Apache-2.0
"""Facts from the Linux kernel about processes, control groups, sockets and users.

Belongs here: a process's identity, and if it lives. Does not: its tenant (`node`).
Begin with `processes`; `cgroup` reads a control group's path.
"""

from __future__ import annotations
