# SPDX-License-Identifier: Apache-2.0
"""A tenant's process in a pid namespace of its own, as in a container, with the daemon outside.

The daemon knows its pid on the host, while NVML names it by the one that it has inside.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from limiter import segment
from tests.conftest import Built, StartProcess
from tests.daemon.conftest import needs_root

pytestmark = [
    needs_root(),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="not installed: unshare"),
]
PROGRAM = Path(__file__).parent.parent / "sim" / "nvml_view_program.py"
INSIDE = ("unshare", "--pid", "--fork", "--mount-proc")
MIB = 1 << 20


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_code_takes_is_charged_in_every_pid_namespace(
    daemon: Any,
    daemon_env: dict[str, str],
    built: Built,
    run_dir: Path,
    tenant: str,
    start_process: StartProcess,
    depth: int,
) -> None:
    pytest.importorskip("pynvml")
    node = daemon(env={"GPULIMIT_SIM_PROFILE": "h200"})
    assert node.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "4GiB"})[0] == 200
    env = daemon_env | {
        "LD_LIBRARY_PATH": str(built.sim),
        "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
        "GPULIMIT_TENANT": tenant,
    }
    argv = [*(INSIDE * depth), "env", f"LD_PRELOAD={built.library}", sys.executable, str(PROGRAM)]
    process = start_process(argv, env=env, stdin=-1)

    def tell(*words: Any) -> Any:
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    assert json.loads(process.stdout.readline()) == "ready"
    for _ in range(20):  # each loads a module: 2 MiB
        assert tell("spin", 0) == 0
    free, total, _ = tell("cuda_info")
    assert total - free == (518 + 20 * 2) * MIB
    kinds = segment.read(tenant).processes[0].accounts[0].kind_bytes
    assert kinds["overhead"] == total - free
    assert tell("pid") == (1 if depth else process.pid)
    assert [row["pid"] for row in tell("processes", "nvmlDeviceGetComputeRunningProcesses", 4)["rows"]] == [
        tell("pid")
    ]
