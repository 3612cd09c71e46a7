# SPDX-License-Identifier: Apache-2.0
"""For the PYTHONPATH of a test's daemon: a process is in the cgroup that its own TEST_CGROUP names."""

from __future__ import annotations

from pathlib import Path

from hypervisor.host import control_groups, process_files

real = process_files.cgroup_text


def cgroup_text(pid: int) -> str:
    try:
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"TEST_CGROUP="):
                return f"0::{entry.partition(b'=')[2].decode()}\n"
    except OSError:
        pass
    return real(pid)


process_files.cgroup_text = cgroup_text
# These groups are nowhere in the file system: root has named all of them.
control_groups.Hierarchy.believed = lambda _, names: len(names)  # type: ignore[method-assign]
