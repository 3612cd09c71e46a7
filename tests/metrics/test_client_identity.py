# SPDX-License-Identifier: Apache-2.0
"""Who a client is, where there is no pod."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from hypervisor.collector.ratio_file import RatioFile
from hypervisor.collector.tenants import is_member
from hypervisor.host.control_groups import ControlGroups
from hypervisor.host.names import Names
from hypervisor.host.unregistered import UnregisteredProcess, inspect
from hypervisor.model import EffectiveQuota, TenantName
from hypervisor.node.registry import Tenant
from limiter.quota import Quota


def test_users_and_containers_have_their_names_and_none_is_made_up(tmp_path) -> None:
    passwd = tmp_path / "passwd"
    passwd.write_text("root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\ntwin:x:1000::::\nbroken\n")
    container = tmp_path / "docker" / ("c" * 64)
    container.mkdir(parents=True)
    (container / "config.v2.json").write_text(json.dumps({"Name": "/trainer"}))
    names = Names(passwd, tmp_path / "docker")
    assert [names.user(uid) for uid in (0, 1000, 7)] == ["root", "alice", "7"]
    passwd.write_text("bob:x:1000:1000::/:/bin/sh\n")
    os.utime(passwd, (1, 1))
    assert names.user(1000) == "bob"
    assert names.container("c" * 64) == "trainer"
    assert names.container("d" * 64) == ""


def test_a_strangers_own_word_is_heard_but_only_of_its_user() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], env={"GPULIMIT_TENANT": "team"}, stdin=subprocess.PIPE
    )
    try:
        stranger = inspect(process.pid, ControlGroups())
    finally:
        process.kill()
        process.communicate()
    assert stranger is not None
    assert (stranger.uid, stranger.tenant) == (os.geteuid(), "team")
    assert inspect(process.pid, ControlGroups()) is None
    own = tenant("team", uid=os.geteuid())
    assert is_member(stranger, own)
    assert not is_member(stranger, tenant("team", uid=12345))
    assert not is_member(stranger, tenant("other", uid=os.geteuid()))


def test_in_pods_and_containers_the_kernels_word_counts() -> None:
    in_pod = UnregisteredProcess(1, 0, "uid-1", "c" * 64, "team")
    assert is_member(in_pod, tenant("pod-uid-1", pod_uid="uid-1"))
    assert not is_member(in_pod, tenant("pod-uid-2", pod_uid="uid-2"))
    assert not is_member(in_pod, tenant("team"))
    in_container = UnregisteredProcess(1, 0, None, "c" * 64, "team")
    assert is_member(in_container, tenant("container-cccccccccccc"))
    assert not is_member(in_container, tenant("team"))


def tenant(name: str, *, uid: int = 0, pod_uid: str | None = None) -> Tenant:
    return Tenant(TenantName(name), uid, EffectiveQuota(Quota(), "default"), Quota(), pod_uid=pod_uid)


def test_a_ratio_file_that_goes_bad_leaves_what_it_said(tmp_path) -> None:
    path = tmp_path / "ratio"
    file = RatioFile(str(path))
    assert file.read().general is None
    path.write_text("4")
    assert file.read().general == 4
    path.write_text("four")
    assert file.read().general == 4
    path.write_text("2.0")
    assert file.read().general == 2
    assert RatioFile("").read().general is None
