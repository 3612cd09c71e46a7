# SPDX-License-Identifier: Apache-2.0
"""Every way in which kubelets and container runtimes are known to write pods and containers into cgroup
paths.
"""

from __future__ import annotations

import pytest

from hypervisor.host.cgroup import Membership, is_plain, parse

UID = "8f8e6f5c-6b0f-4a57-9d7c-0c7b4f6a2d11"
UID_ = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
C = "c" * 63 + "1"
NODE = "d" * 64
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice"

FORMS = {
    "cgroupfs, burstable": (f"/kubepods/burstable/pod{UID}/{C}", UID, C),
    "cgroupfs, besteffort": (f"/kubepods/besteffort/pod{UID}/{C}", UID, C),
    "cgroupfs, guaranteed": (f"/kubepods/pod{UID}/{C}", UID, C),
    "cgroupfs, CRI-O": (f"/kubepods/burstable/pod{UID}/crio-{C}", UID, C),
    "systemd, containerd": (f"{SLICE}/cri-containerd-{C}.scope", UID, C),
    "systemd, guaranteed": (f"/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{C}.scope", UID, C),
    "systemd, CRI-O": (f"{SLICE}/crio-{C}.scope", UID, C),
    "systemd, CRI-O with crun": (f"{SLICE}/crio-{C}.scope/container", UID, C),
    "systemd, Docker": (f"{SLICE}/docker-{C}.scope", UID, C),
    "systemd kubelet, cgroupfs containerd": (
        f"/system.slice/containerd.service/kubepods-besteffort-pod{UID_}.slice:cri-containerd:{C}",
        UID,
        C,
    ),
    "kind, cgroupfs": (f"/docker/{NODE}/kubelet/kubepods/besteffort/pod{UID}/{C}", UID, C),
    "kind, systemd": (
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort-pod{UID_}.slice/docker-{C}.scope",
        UID,
        C,
    ),
    "static pod": (
        f"/kubepods.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{C}.scope",
        STATIC,
        C,
    ),
    "private namespace, other pod": (
        f"/../../kubepods-burstable-pod{UID_}.slice/cri-containerd-{C}.scope",
        UID,
        C,
    ),
    "private namespace, own pod": (f"/../crio-{C}.scope", None, C),
    "CRI-O's helper": (f"{SLICE}/crio-conmon-{C}.scope", UID, None),
    "plain Docker": (f"/system.slice/docker-{C}.scope", None, C),
    "plain Docker, cgroupfs": (f"/docker/{C}", None, C),
    "Podman": (f"/machine.slice/libpod-{C}.scope/container", None, C),
    "Podman's helper": (f"/machine.slice/libpod-conmon-{C}.scope", None, C),
    "the pod's own group inside a node that is a container": (
        f"/docker/{NODE}/kubelet/kubepods/besteffort/pod{UID}",
        UID,
        None,
    ),
    "a login session": ("/user.slice/user-1000.slice/session-3.scope", None, None),
    "the root": ("/", None, None),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", ["v2", "v1", "hybrid"])
def test_membership_is_found(form: str, shape: str) -> None:
    path, pod, container = FORMS[form]
    lines = {
        "v2": f"0::{path}\n",
        "v1": f"12:pids:{path}\n11:cpu,cpuacct:{path}\n1:name=systemd:{path}\n",
        "hybrid": f"12:rdma:/\n11:memory:{path}\n0::/system.slice\n",
    }
    assert parse(lines[shape]) == Membership(pod, container)


@pytest.mark.parametrize(
    "path",
    [
        f"/user.slice/tripod{UID}/x",  # "pod" inside a word
        f"/kubepods/pod{UID[:-1]}/x",  # too short
        f"/kubepods/pod{UID}0/x",  # too long
        f"/kubepods/pod{UID.upper()}/x",
        "/kubepods/pod8f8e6f5c-6b0f_4a57-9d7c-0c7b4f6a2d11/x",  # separators mixed
        f"/libpod-{UID_}",
        "/system.slice/" + "e" * 65,
    ],
)
def test_what_only_looks_like_it_is_not_taken(path: str) -> None:
    assert parse(f"0::{path}\n") == Membership()


def test_the_innermost_pod_counts() -> None:
    """So a node that runs inside a pod works. Making groups below one's own needs rights that pods lack."""
    other = "11111111-2222-3333-4444-555555555555"
    assert parse(f"0::/kubepods/pod{UID}/{C}/pod{other}\n").pod_uid == other


@pytest.mark.parametrize("text", ["", "\n", "nonsense", "0:\n", "0::\n", ":::\n", "1:a:b:c:d\n"])
def test_nonsense_is_no_membership(text: str) -> None:
    assert parse(text) == Membership()


# ---- plain layouts ----

PLAIN = [
    "/",
    "/init.scope",
    "/user.slice",
    "/user.slice/user-1000.slice/session-3.scope",
    "/user.slice/user-1000.slice/user@1000.service/init.scope",
    "/user.slice/user-1000.slice/user@1000.service/app.slice/app-code.scope/anything",
    "/system.slice/sshd.service",
    "/system.slice/cron.service",
    "/system.slice/system-getty.slice/getty@tty1.service",
    "/system.slice/jupyter-alice-singleuser.service",
    "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
    "/system.slice/run-u7.scope",
    "/system.slice/run-r0123456789abcdef.scope",
    "/user.slice/user-1000.slice/session-c2.scope",
    "/batch.slice/train.service",
    "/batch.slice/train.slice",
    "/kube.slice/kubelet.service",
    "/system.slice/containerd.service",
    "/../../system.slice/sshd.service",
]
UNKNOWN = [
    "/..",
    "/default/busybox",
    "/lxc.payload.web",
    "/lxc/web",
    "/machine.slice/machine-web.scope/payload",
    "/machine.slice/systemd-nspawn@web.service/payload",
    "/system.slice/systemd-nspawn@web.service",
    "/system.slice/runc-web.scope",
    "/system.slice/crun-web.scope",
    "/system.slice/docker-web.scope",
    "/system.slice/web.scope",
    "/nomad.slice/share.slice/8a1f.task.scope",
    "/session-1.scope",
    "/system.slice/containerd.service/web",
    "/system.slice/snap.lxd.daemon.service/lxc.payload.web",
    "/user.slice/user-0.slice/session-1.scope/web",
    "/kubepods.slice/kubepods-besteffort.slice/something-new.scope",
    "/kubepods/burstable/something-new",
    "/kubelet.slice/kubelet-kubepods.slice/x.scope",
    "/garden/1234",
    "/mesos/8a1f",
    "/buildkit/abcdef",
]


@pytest.mark.parametrize("path", PLAIN)
def test_what_systemd_makes_for_services_and_users_is_plain(path: str) -> None:
    assert is_plain(path)


@pytest.mark.parametrize("path", UNKNOWN)
def test_what_a_runtime_could_have_made_is_not_plain(path: str) -> None:
    assert parse(f"0::{path}\n") == Membership()
    assert not is_plain(path)
