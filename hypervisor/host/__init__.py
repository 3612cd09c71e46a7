# SPDX-License-Identifier: Apache-2.0
"""Facts from the Linux kernel about processes, control groups, sockets and users.

Belongs here: who a process is and whether it lives. Does not: which tenant that makes it (`node`).
Begin with `processes`; `cgroup` reads a control group's path.
"""

from __future__ import annotations
