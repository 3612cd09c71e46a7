# SPDX-License-Identifier: Apache-2.0
"""The daemon's saved state: damaged files, a folder that cannot be written, what survives then."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.conftest import Daemon, eventually

GIB = 1 << 30


def page(node: Daemon, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", node.metrics_port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


def block(folder: Path) -> None:
    """Let the folder be unusable, also for root."""
    shutil.move(folder, folder.with_name("saved-state")) if folder.is_dir() else None
    folder.write_text("in the way")


def unblock(folder: Path) -> None:
    folder.unlink()
    saved = folder.with_name("saved-state")
    if saved.is_dir():
        shutil.move(saved, folder)


@pytest.mark.parametrize("kind", ["deep", "fifo", "null", "version"])
def test_a_spoiled_file_is_kept_and_no_reason_not_to_start(daemon, client, state_dir, kind) -> None:
    state_dir.mkdir()
    path = state_dir / "tenants.json"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        texts = {"deep": "[" * 200_000, "null": "null", "version": '{"version": 7, "api": {}, "tenants": {}}'}
        path.write_text(texts[kind])
    node = daemon()
    assert client().answer["status"] == 200
    assert node.state()["counts"]["state_lost"] == 1
    assert f"cannot read {path}" in node.stop()
    assert len(list(state_dir.glob("tenants.json.*"))) == 1
    assert json.loads(path.read_text())["version"] == 1


def test_one_bad_entry_costs_no_operator_s_quota(daemon, client, tenant, state_dir) -> None:
    node = daemon()
    client(memory="4GiB")
    node.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "3GiB"})
    node.ask("PUT", "/v1/tenants/waits-for-its-quota/quota", {"memory": "2GiB"})
    node.stop(signal.SIGKILL)
    path = state_dir / "tenants.json"
    data = json.loads(path.read_text())
    data["tenants"]["spoiled"] = data["tenants"][tenant] | {"source": "nobody"}
    path.write_text(json.dumps(data))
    again = daemon()
    assert eventually(lambda: again.tenant(tenant))["source"] == "api"
    assert again.ask("GET", "/v1/tenants/waits-for-its-quota/quota")[2]["quota"] == {
        "memory": f"*={2 * GIB}B"
    }
    (lost,) = [event for event in again.state()["events"] if event["kind"] == "state_lost"]
    assert lost["tenant"] == "spoiled"


def limits(one: Any) -> dict[str, Any]:
    (device,) = one.tell(order="look")["devices"]
    return dict(device)


def test_changes_that_cannot_be_saved_are_said_and_hold_over_a_restart(
    daemon, client, tenant, state_dir
) -> None:
    node = daemon()
    one = client(memory="4GiB")
    block(state_dir)
    status, _, answer = node.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "3GiB", "compute": 40})
    assert status == 200
    assert "cannot write" in answer["warnings"][0]
    status, _, answer = node.ask("POST", f"/v1/tenants/{tenant}/suspend")
    assert status == 200
    assert "cannot write" in answer["warnings"][0]
    status, text = page(node, "/readyz")
    assert status == 503
    assert "state: cannot write" in text
    eventually(lambda: 'gpulimit_sampler_up{sampler="state"} 0\n' in page(node, "/metrics")[1])
    assert "state_not_saved" in node.stop(signal.SIGKILL)

    unblock(state_dir)  # as it was before the two changes
    again = daemon()
    shown = eventually(lambda: again.tenant(tenant))
    assert shown["suspended"]
    assert shown["source"] == "api"
    assert (limits(one)["suspended"], limits(one)["memory_limit_bytes"]) == (1, 3 * GIB)
    assert "state_recovered" in again.state()["counts"]
    assert "warnings" not in again.ask("PUT", f"/v1/tenants/{tenant}/quota", {"compute": 50})[2]
    assert page(again, "/readyz")[0] == 200


def test_a_tenant_that_was_never_saved_stays_suspended(daemon, client, tenant, state_dir) -> None:
    block(state_dir)
    node = daemon()
    one = client(memory="4GiB", compute=30)
    node.ask("POST", f"/v1/tenants/{tenant}/suspend")
    node.stop(signal.SIGKILL)
    again = daemon()
    assert again.tenant(tenant) is None
    # It has a slot, so it lives; its registration is what tells the new daemon of it.
    assert one.tell(order="register", tenant=tenant, environment={"GPULIMIT_MEMORY": "4GiB"})["status"] == 200
    assert again.tenant(tenant)["suspended"]
    assert limits(one)["suspended"] == 1
    assert limits(one)["compute_limit_percent"] == 30


def test_what_could_not_be_saved_is_saved_later(daemon, client, tenant, state_dir) -> None:
    block(state_dir)
    node = daemon()
    client()
    assert node.ask("PUT", f"/v1/tenants/{tenant}/quota", {"memory": "3GiB"})[2]["warnings"]
    assert node.state()["daemon"]["warnings"]
    unblock(state_dir)
    eventually(lambda: not node.state()["daemon"]["warnings"])
    assert tenant in (state_dir / "quotas.json").read_text()
    assert "saved again" in node.stop()
