# SPDX-License-Identifier: Apache-2.0
"""The systemd unit as it is shipped: its capabilities and mounts keep policies read-only for containers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.daemon.conftest import eventually, free_port, is_ready, needs_root

UNIT = Path(__file__).parents[2] / "deploy/systemd/gpulimit.service"
WARNING = "containers' root can change its own"


def said(key: str) -> list[str]:
    """Return the values of a key of the unit."""
    lines = (line.partition("=") for line in UNIT.read_text().splitlines())
    return [value for name, _, value in lines if name == key]


def start(daemon, tmp_path: Path, *, is_with_view: bool):
    """Start a daemon with the unit's capabilities and, if so, with the view that the unit has mounted."""
    ((source, target),) = [paths.split(":") for paths in said("BindReadOnlyPaths")]
    variables = dict(pair.split("=", 1) for pair in said("Environment"))
    assert variables == {"GPULIMITD_SHM_READ_ONLY": target}
    assert target.startswith("/run/gpulimit/") and said("RuntimeDirectory") == ["gpulimit"]
    view = tmp_path / "view"
    view.mkdir()
    bind = f"mount --bind {source} {view}; mount -o remount,bind,ro {view};" if is_with_view else ""
    names = [name.removeprefix("CAP_").lower() for name in said("CapabilityBoundingSet")[0].split()]
    kept = ",".join(["-all", *(f"+{name}" for name in names)])
    prefix = [
        *("unshare", "--mount", "--propagation=private", "/bin/sh", "-ec", f'{bind} exec "$@"', "sh"),
        *("setpriv", "--bounding-set", kept, "--inh-caps", "-all", "--no-new-privs"),
    ]
    options = {"shm_read_only": str(view)} if is_with_view else {}
    return daemon(prefix=prefix, metrics_addr=f"127.0.0.1:{free_port()}", **options)


needs_mounts = pytest.mark.skipif(
    shutil.which("setpriv") is None
    or os.geteuid() != 0
    or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs setpriv and mount namespaces",
)


@needs_root()
@needs_mounts
def test_with_the_unit_s_view_policies_are_read_only_for_containers(daemon, client, tenant, tmp_path) -> None:
    node = start(daemon, tmp_path, is_with_view=True)
    eventually(lambda: is_ready(node))
    assert client(memory="4GiB").answer["status"] == 200
    assert WARNING not in node.stop()


@needs_root()
@needs_mounts
def test_without_it_the_daemon_would_warn(daemon, tmp_path) -> None:
    assert WARNING in start(daemon, tmp_path, is_with_view=False).stop()
