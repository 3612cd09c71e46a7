# SPDX-License-Identifier: Apache-2.0
"""Checks of a node whose daemon serves containers: rights, folders, sockets, the library.

They run beside the daemon, for example in its pod with `kubectl exec`. Paths are the daemon's, from its
environment and file.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from limiter import cards, daemon_client, library_store, paths
from limiter.doctor.check import Check, fail, ok, warn
from limiter.errors import GpulimitError
from limiter.paths import DAEMON_SOCKET

ROOT_GROUP = 1
"""Inode of the root of a cgroup hierarchy."""
CAPABILITIES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3}
"""Capabilities that the daemon needs, by the kernel's numbers."""
SYS_ADMIN = 21
FIRST_PID_NAMESPACE = 0xEFFFFFFC
OLDEST_KERNEL, DOORBELL_KERNEL = (5, 3), (5, 16)
RECORD = "kubelet_internal_checkpoint"


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the daemon's paths and switches: from GPULIMITD_*, its file, or the defaults."""
    found: dict[str, Any] = {
        "socket": DAEMON_SOCKET,
        "kubelet_dir": "/var/lib/kubelet",
        "library_dir": "/var/lib/gpulimit/containers",
        "shm_read_only": "",
        "device_plugin": "off",
        "hand_over": "nvidia",
        "merge_preload": "off",
        "cdi_dir": "/var/run/cdi",
    }
    file = environ.get("GPULIMITD_CONFIG")
    if file:
        said = tomllib.loads(Path(file).read_text(encoding="utf-8"))
        found |= {key: said[key] for key in found if key in said}
    found |= {k: environ[f"GPULIMITD_{k.upper()}"] for k in found if f"GPULIMITD_{k.upper()}" in environ}
    return {key: str(value) for key, value in found.items()}


def checks(environment: Mapping[str, str]) -> Iterator[Check]:
    """Run all checks for serving containers. `environment` is that of the process that asks NVML."""
    try:
        told = settings(os.environ)
    except (OSError, ValueError) as error:
        yield fail("options", f"the daemon's file cannot be read: {error}", "see GPULIMITD_CONFIG")
        return
    yield kernel(platform.release())
    yield rights(Path("/proc/self/status").read_text())
    yield pid_namespace(Path("/proc/self/ns/pid").stat().st_ino)
    yield read_only_view(told["shm_read_only"])
    yield control_groups(Path("/proc/self/mountinfo").read_text())
    yield placed_library(Path(told["library_dir"]), told["socket"])
    if told["merge_preload"] == "on" or told["hand_over"] == "cdi":
        yield cdi_folder(Path(told["cdi_dir"]))
    yield folder_of_socket(Path(told["socket"]))
    yield from daemon(told["socket"])
    yield from kubelet(Path(told["kubelet_dir"]), is_wanted=told["device_plugin"] == "on")
    yield nvml(environment)


def kernel(release: str) -> Check:
    found = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    if found < OLDEST_KERNEL:
        return fail("kernel", release, "Linux 5.3 or later is needed")
    if found < DOORBELL_KERNEL:
        return ok("kernel", f"{release}; the daemon looks every 2 ms, 5.16 or later would wake it")
    return ok("kernel", release)


def rights(status: str) -> Check:
    line = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    held = int(line.split()[1], 16)
    missing = [name for name, number in CAPABILITIES.items() if not held >> number & 1]
    if missing:
        advice = "run as root with these, to give segments to whatever users containers run as"
        return fail("rights", f"without {', '.join(missing)}", advice)
    return ok("rights", "root with what is needed")


def pid_namespace(inode: int) -> Check:
    if inode == FIRST_PID_NAMESPACE:
        return ok("pid namespace", "the host's")
    advice = "set hostPID: true; processes outside this namespace would be refused"
    return warn("pid namespace", "one of its own", advice)


def read_only_view(path: str) -> Check:
    name, held = "/dev/shm, read-only", Path("/proc/self/status").read_text()
    if not path:
        line = next(line for line in held.splitlines() if line.startswith("CapEff:"))
        if int(line.split()[1], 16) >> SYS_ADMIN & 1:
            return ok(name, "the daemon makes a mount of its own")
        advice = "mount /dev/shm a second time, read-only, and name the place in shm_read_only"
        return warn(name, "not possible: root in a container can change its own limits", advice)
    try:
        is_it = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        is_shm = Path(path).stat().st_dev == Path("/dev/shm").stat().st_dev
    except OSError as error:
        return fail(name, f"{path}: {error.strerror}", "mount /dev/shm there, read-only")
    if not (is_it and is_shm):
        return fail(name, f"{path} is not /dev/shm mounted read-only", "mount it there")
    return ok(name, f"at {path}")


def control_groups(mountinfo: str) -> Check:
    """Look for a mount of a whole cgroup hierarchy: in a container, the runtime only shows the container's
    own.
    """
    name = "control groups"
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        root, place = fields.split()[3], Path(fields.split()[4])
        with contextlib.suppress(OSError):
            if kind.startswith("cgroup") and (root.startswith("/..") or place.stat().st_ino == ROOT_GROUP):
                return ok(name, f"the node's, at {place}")
    advice = "mount the node's /sys/fs/cgroup read-only, at /run/gpulimit-cgroup for example"
    return fail(name, "only a part is seen here: processes of pods are refused", advice)


def placed_library(folder: Path, path: str) -> Check:
    """Install the library for containers, as the daemon does, and check that a program can map it."""
    name = "library for containers"
    try:
        placed = library_store.place(paths.library(), folder, path)
    except GpulimitError as error:
        advice = f"{folder} must be on the node, writable, and not mounted noexec"
        return fail(name, str(error), advice)
    builds = len(list(folder.glob(f"{library_store.PREFIX}*{library_store.SUFFIX}")))
    return ok(name, f"{placed.library} is mapped into a test process; {builds} builds there")


def cdi_folder(folder: Path) -> Check:
    """Check that the folder of CDI specifications is writable, for the hook that merges preload files."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return fail("CDI", f"{folder} is not there, or not writable", "mount the node's, or set cdi_dir")
    return ok("CDI", f"{folder} can be written")


def folder_of_socket(path: Path) -> Check:
    folder = path.parent
    if not folder.is_dir():
        return fail("socket's folder", f"{folder} is not there", "start the daemon once, or mount it")
    if folder.stat().st_mode & 0o055 != 0o055:
        advice = f"chmod 755 {folder}: containers of every user must reach the socket"
        return fail("socket's folder", f"{folder} is closed to others", advice)
    return ok("socket's folder", str(folder))


def daemon(path: str) -> Iterator[Check]:
    try:
        state = daemon_client.ask("GET", "/v1/state", path=path)
    except GpulimitError as error:
        yield fail("daemon", str(error), "start it: gpulimit daemon")
        return
    reasons = state.get("daemon", {}).get("not_ready", [])
    if reasons:
        yield fail("daemon", f"answers, but is not ready: {reasons[0]}", "see /readyz and its log")
    else:
        text = f"answers; {len(state.get('gpus', []))} GPUs, {len(state.get('tenants', []))} tenants"
        yield ok("daemon", text)
    for warning in state.get("daemon", {}).get("warnings", []):
        yield fail("daemon's state", warning, "make room in state_dir, or make it writable")
    for gpu in state.get("gpus", []):
        if not gpu["healthy"]:
            yield fail(f"GPU {gpu['index']}", f"{gpu['uuid']}: {gpu['error']}", "see dmesg for Xid errors")


def kubelet(folder: Path, *, is_wanted: bool) -> Iterator[Check]:
    """Check the kubelet's folders and sockets, if there is a kubelet."""
    plugins = folder / "device-plugins"
    if not plugins.is_dir():
        text = f"{plugins} is not there"
        if is_wanted:
            yield fail("kubelet", text, "mount it, or set kubelet_dir")
        else:
            yield ok("kubelet", f"none ({text}), and none needed")
        return
    yield listens("kubelet", plugins / "kubelet.sock", "is the kubelet running?")
    if is_wanted:
        yield listens("device plugin", plugins / "gpulimit.sock", "the daemon makes it: see its log")
        yield record(plugins / RECORD)
        yield pod_resources(folder / "pod-resources" / "kubelet.sock")


def listens(name: str, path: Path, advice: str) -> Check:
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return fail(name, f"{path} is no socket", advice)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2.0)
            client.connect(str(path))
    except OSError as error:
        return fail(name, f"{path}: {error.strerror or error}", advice)
    return ok(name, f"listens on {path}")


def record(path: Path) -> Check:
    name = "kubelet's record"
    try:
        with path.open("rb") as file:
            file.read(1)
    except FileNotFoundError:
        return ok(name, "none yet: no pod has had a device")
    except OSError as error:
        return fail(name, f"{path}: {error.strerror}", "the daemon must read which pod has which slices")
    return ok(name, str(path))


def pod_resources(path: Path) -> Check:
    """Check that the kubelet's pod-resources API answers."""
    found = listens("pod resources", path, "mount the kubelet's folder pod-resources")
    if found.level == "ok":
        return found
    return warn(found.name, f"{found.text}: the kubelet's record alone is read", found.advice)


def nvml(environment: Mapping[str, str]) -> Check:
    try:
        found = cards.cards(environment)
    except GpulimitError as error:
        advice = (
            "give the daemon all cards: NVIDIA_VISIBLE_DEVICES=all under NVIDIA's runtime, runtimeClassName"
        )
        return fail("NVML", str(error), advice)
    if not found:
        return fail("NVML", "no cards", "is this node meant to be here?")
    return ok("NVML", ", ".join(f"{card.index}: {card.name}" for card in found))
