# SPDX-License-Identifier: Apache-2.0
"""Which part of a control group's path is believed, on trees laid out here, as a daemon sees them on the
node, in a pod with a part of them, and in a pod that has the node's mounted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hypervisor.errors import Refused
from hypervisor.host.cgroup import Membership, of_path
from hypervisor.host.control_groups import ControlGroups, mounts_in
from tests.daemon.conftest import needs_root

POD = "1a2b3c4d-0000-4000-8000-00000000000a"
OTHER = "11111111-2222-3333-4444-555555555555"
C, D = "c" * 64, "d" * 64
USER = 1000
Lay = Callable[..., ControlGroups]


@pytest.fixture
def lay(tmp_path: Path) -> Lay:
    """Lay out a daemon's /proc: its own group, and mounts (root, place) of version 2."""

    def make(own: str, *mounts: tuple[str, Path], kind: str = "cgroup2 cgroup2 rw") -> ControlGroups:
        folder = tmp_path / "proc/self"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(own)
        lines = [
            f"{40 + i} 31 0:38 {root} {place} rw,relatime - {kind}" for i, (root, place) in enumerate(mounts)
        ]
        (folder / "mountinfo").write_text("\n".join(lines))
        return ControlGroups(folder.parent)

    return make


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def group(tree: Path, path: str, owner: int | None = None, mode: int = 0o755) -> None:
    place = tree / path.lstrip("/")
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(mode)
    if owner is not None:
        os.chown(place, owner, owner)


@needs_root()
@pytest.mark.parametrize(
    ("path", "owned", "member"),
    [
        (f"/kubepods/pod{POD}/{C}", None, Membership(POD, C)),
        (
            f"/kubepods/pod{POD}/{C}",
            f"/kubepods/pod{POD}/{C}",
            Membership(POD, C),
        ),  # its own group is a user's
        (f"/kubepods/pod{POD}/{C}", f"/kubepods/pod{POD}", Membership(POD, None)),
        (f"/kubepods/pod{POD}/{C}", "/kubepods", Membership()),
        (f"/user.slice/user@1000.service/pod{POD}", "/user.slice/user@1000.service", Membership()),
        (f"/system.slice/a.service/docker-{C}.scope", "/system.slice/a.service", Membership()),
        (f"/docker/{C}/pod{POD}/{D}", f"/docker/{C}", Membership(None, C)),
        (f"/kubepods/pod{POD}/{C}/pod{OTHER}/{D}", f"/kubepods/pod{POD}/{C}", Membership(POD, C)),
        (f"/kubepods/pod{POD}/{C}/pod{OTHER}/{D}", None, Membership(OTHER, D)),
    ],
)
def test_a_name_counts_where_root_owns_all_above_it(
    lay: Lay, tree: Path, path: str, owned: str | None, member: Membership
) -> None:
    group(tree, path)
    if owned is not None:
        os.chown(tree / owned.lstrip("/"), USER, USER)
    place = lay("0::/init.scope\n", ("/", tree)).place(f"0::{path}\n")
    assert place.member == member
    assert place.is_named_by_user == (member != of_path(path))


@needs_root()
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_group_that_others_may_write_names_nothing(lay: Lay, tree: Path, mode: int) -> None:
    group(tree, f"/kubepods/pod{POD}")
    (tree / "kubepods").chmod(mode)
    place = lay("0::/init.scope\n", ("/", tree)).place(f"0::/kubepods/pod{POD}\n")
    assert (place.member, place.unknown) == (Membership(), f"/kubepods/pod{POD}")


@needs_root()
def test_a_unit_whose_group_is_delegated_is_its_users_plain_process(lay: Lay, tree: Path) -> None:
    group(tree, f"/system.slice/a.service/pod{POD}")
    os.chown(tree / "system.slice/a.service", USER, USER)
    place = lay("0::/init.scope\n", ("/", tree)).place(f"0::/system.slice/a.service/pod{POD}\n")
    assert (place.member, place.unknown) == (Membership(), "")
    assert place.is_named_by_user


def test_what_is_out_of_sight_is_refused(lay: Lay, tree: Path) -> None:
    group(tree, "/")
    pod = f"0::/../../kubepods-pod{POD}.slice/cri-containerd-{C}.scope\n"
    with pytest.raises(Refused, match="give it the node's /sys/fs/cgroup"):
        lay("0::/\n", ("/", tree)).place(pod)
    with pytest.raises(Refused, match="give it the node's /sys/fs/cgroup"):
        lay("0::/\n").place(pod)
    with pytest.raises(Refused, match="No such file"):
        lay("0::/init.scope\n", ("/", tree)).place(f"0::/kubepods/pod{POD}/{C}\n")
    assert lay("0::/\n").place("0::/../../system.slice/a.service\n").member == Membership()


@needs_root()
def test_a_daemon_in_a_pod_sees_by_the_nodes_mount(lay: Lay, tree: Path, tmp_path: Path) -> None:
    """The runtime shows it its own group as the root; paths of others begin with /.. there."""
    own = f"kubepods.slice/kubepods-pod{OTHER}.slice/cri-containerd-{D}.scope"
    group(tree, own)
    pod = f"kubepods.slice/kubepods-pod{POD}.slice/cri-containerd-{C}.scope"
    group(tree, pod)
    shown = tmp_path / "own"
    shown.symlink_to(tree / own)  # stands for the mount of its own group: the same inode
    groups = lay("0::/\n", ("/", shown), ("/../../..", tree))
    text = f"0::/../../kubepods-pod{POD}.slice/cri-containerd-{C}.scope\n"
    assert groups.sees_node()
    assert not lay("0::/\n", ("/", shown)).sees_node()
    assert groups.place(text).member == Membership(POD, C)
    sibling = f"cri-containerd-{C}.scope"
    group(tree, f"kubepods.slice/kubepods-pod{OTHER}.slice/{sibling}")
    assert groups.place(f"0::/../{sibling}\n").member == Membership(OTHER, C)
    assert groups.place("0::/\n").member == Membership()
    assert groups.place("0::/../../../system.slice/a.service\n").unknown == ""
    os.chown(tree / "kubepods.slice", USER, USER)
    assert groups.place(text).member == Membership()


def test_version_1_has_a_tree_for_each_line(lay: Lay, tree: Path) -> None:
    text = "4:memory:/a\n1:name=systemd:/\n0::/\n"
    mounts = "\n".join(
        [
            "40 31 0:38 / /a\\040b rw - cgroup cgroup rw,cpuacct,cpu",
            "41 31 0:39 / /s rw,nosuid - cgroup cgroup rw,xattr,name=systemd",
            "42 31 0:40 /.. /u rw - cgroup2 cgroup2 rw,nsdelegate",
            "43 31 0:41 / /tmp rw - tmpfs tmpfs rw",
            "nonsense",
        ]
    )
    found = mounts_in(mounts)
    assert [m.place for m in found] == [Path("/a b"), Path("/s"), Path("/u")]
    assert [m.root for m in found] == ["/", "/", "/.."]
    assert "name=systemd" in found[1].options and not found[2].options
    assert lay(text).place(text).member == Membership()


def test_an_unknown_layout_is_told_but_not_of_the_daemons_own_group(lay: Lay) -> None:
    groups = lay("4:memory:/process_api/x\n0::/\n")
    assert groups.place("4:memory:/process_api/x\n0::/user.slice/session-1.scope\n").unknown == ""
    assert groups.place("4:memory:/process_api/y\n0::/\n").unknown == "/process_api/y"
    assert groups.place("4:memory:/process_api/x\n0::/lxc/web\n").unknown == "/lxc/web"
