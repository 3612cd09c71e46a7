# SPDX-License-Identifier: Apache-2.0
"""The daemon with exactly the rights that deploy/k8s gives it: three capabilities, no new privileges, a
read-only second mount of /dev/shm; and tenants of other users with a /dev/shm of their own.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Built
from tests.daemon.conftest import Daemon, eventually, free_port, is_ready, needs_root
from tests.daemon.test_hand_over import files_of
from tests.plugin.conftest import tenant_of
from tests.plugin.kubelet import Kubelet

RIGHTS = ["--bounding-set=-all,+chown,+dac_override,+fowner", "--inh-caps=-all", "--no-new-privs"]
MOUNT = """
mkdir -p "$VIEW"
mount --bind /dev/shm "$VIEW"
mount -o remount,bind,ro "$VIEW"
exec "$@"
"""

pytestmark = [
    needs_root(),
    pytest.mark.skipif(
        shutil.which("setpriv") is None or shutil.which("unshare") is None,
        reason="not installed: setpriv, unshare",
    ),
]


@pytest.fixture
def confined(
    kubelet: Kubelet, daemon_env, run_dir: Path, tmp_path: Path, tenant: str, start_process
) -> Daemon:
    """A daemon with these rights."""
    view, log, port = run_dir / "shm", tmp_path / "daemon.log", free_port()
    flags = {
        "socket": run_dir / "daemon.sock",
        "state-dir": tmp_path / "state",
        "state-segment": f"gpulimit.s.{tenant}",
        "metrics-addr": f"127.0.0.1:{port}",
        "shm-read-only": view,
        "device-plugin": "on",
        "kubelet-dir": run_dir / "kubelet",
        "library-dir": run_dir / "lib",
    }
    arguments = [f"--{name}={value}" for name, value in flags.items()]
    python = [sys.executable, "-P", "-m", "hypervisor", "--sim", *arguments]
    namespace = ["unshare", "--mount", "--propagation=private", "/bin/sh", "-ec", MOUNT, "sh"]
    with log.open("w") as output:
        process = start_process(
            [*namespace, "setpriv", *RIGHTS, *python],
            env=daemon_env | {"VIEW": str(view)},
            stdout=output,
            stderr=output,
        )
    made = Daemon(process, str(flags["socket"]), port, log)
    eventually(lambda: is_ready(made))
    kubelet.wait_for(lambda: kubelet.healthy())
    return made


PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int call();

int main(int argc, char **argv)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
	unsigned long long memory;
	int device = 0, r;

	(void)argc;
	if (!driver)
		return 99;
	r = ((call *)dlsym(driver, "cuInit"))(0);
	r = r ? r : ((call *)dlsym(driver, "cuCtxCreate_v2"))(&context, 0, device);
	r = r ? r : ((call *)dlsym(driver, "cuMemAlloc_v2"))(&memory, (size_t)strtoull(argv[1], NULL, 10));
	printf("%d\\n", r);
	return 0;
}
"""


@pytest.fixture
def try_memory(built: Built, compile_c, run_dir: Path, daemon_env) -> Any:
    """Let a pod's process of some user, with a /dev/shm of its own, allocate; return the driver's answer."""
    folder = run_dir / "files"
    shutil.copytree(built.sim, folder / "sim", ignore=shutil.ignore_patterns("*.o", "*.d"))
    shutil.copy(built.library, folder / "libgpulimit.so")
    program = shutil.copy(compile_c(PROGRAM, "-w", "-ldl", name="try_memory"), folder)

    def attempt(pod: Any, user: int, size: int) -> int:
        Path(daemon_env["GPULIMIT_SIM_STATE"]).chmod(0o666)
        env = daemon_env | {
            "LD_LIBRARY_PATH": str(folder / "sim"),
            "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
        }
        preload = f"LD_PRELOAD={folder / 'libgpulimit.so'}"
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        shm = ["unshare", "--mount", "--propagation=private", "/bin/sh", "-ec"]
        shm += ['mount -t tmpfs none /dev/shm; exec "$@"', "sh"]
        process = pod.start([*shm, *become, "env", preload, program, str(size)], env=env)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        return int(out)

    return attempt


@pytest.fixture
def daemon_env(daemon_env: dict[str, str], run_dir: Path) -> dict[str, str]:
    """The simulated machine where every user reaches it."""
    return daemon_env | {"GPULIMIT_SIM_STATE": str(run_dir / "sim.state")}


def test_it_serves_pods_of_any_user(confined: Daemon, kubelet: Kubelet, pod, try_memory) -> None:
    status = Path(f"/proc/{confined.process.pid}/status").read_text()
    assert "CapEff:\t000000000000000b\n" in status and "NoNewPrivs:\t1\n" in status
    one = pod()
    kubelet.allocate(*kubelet.healthy()[:2], pod=one.uid)
    total = confined.state()["gpus"][0]["memory_bytes"]
    for user in (0, 65534, 12345):
        assert try_memory(one, user, total // 2) == 2, "out of memory"
        assert try_memory(one, user, total // 20) == 0
    assert tenant_of(confined, one)["source"] == "slices"
    assert "Traceback" not in confined.log.read_text()


def test_policies_are_handed_over_through_the_read_only_mount(confined: Daemon, tenant: str) -> None:
    policy, usage, state = files_of(Path(confined.socket), tenant)
    for file in (policy, state):
        with pytest.raises(OSError) as refused:
            os.open(f"/proc/self/fd/{file}", os.O_RDWR)
        assert refused.value.errno == errno.EROFS
    for file in (policy, usage, state):
        os.close(file)


def test_a_view_that_is_not_one_is_refused(daemon, run_dir: Path) -> None:
    refused: Any = daemon("--shm-read-only", str(run_dir), is_awaited=False)
    assert refused.process.wait(20) == 2
    assert "is not mounted read-only" in refused.log.read_text()
