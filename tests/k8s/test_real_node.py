# SPDX-License-Identifier: Apache-2.0
"""A whole node of real parts, with a daemon of ours as device plugin, on simulated cards (make test-k8s).

The tests themselves are in inside_*.py, and run in namespaces of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.k8s import parts
from tests.k8s.node import NAME, remove_groups

WHY_NOT = parts.missing(
    *("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet"),
    *("containerd", "runc", "cni"),
)
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.timeout(900)]
HERE = Path(__file__).parent


@pytest.mark.parametrize("tests", ["inside_node.py", "inside_plugin.py", "inside_daemonset.py"])
def test_a_whole_node(tmp_path: Path, tests: str) -> None:
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("unshare", "ip", "gcc")):
        pytest.skip("needs root, unshare, ip and gcc")
    namespaces = ["unshare", "-m", "-n", "-p", "-f", "--kill-child", "--mount-proc"]
    inner = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"]
    inner += [f"--basetemp={tmp_path / 'inner'}", str(HERE / tests)]
    try:
        done = run([*namespaces, str(HERE / "in_node.sh"), str(tmp_path), NAME, *inner])
    finally:
        remove_groups()
    assert done.returncode == 0, done.stdout[-15000:] + done.stderr[-3000:]
    print(done.stdout)


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the tests within. What they start ends with them: so it is in a process namespace of theirs."""
    return subprocess.run(
        argv,
        cwd=ROOT,
        env={**os.environ, "GPULIMIT_TEST_NODE": str(os.getpid())},
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
