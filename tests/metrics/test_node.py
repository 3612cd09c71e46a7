# SPDX-License-Identifier: Apache-2.0
"""A real daemon's metrics: tenants' figures, and what they are when things go wrong."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.conftest import needs_program
from tests.daemon.conftest import eventually
from tests.metrics.conftest import Node, Scrape

GIB, MIB = 1 << 30, 1 << 20


def test_three_tenants_are_all_there(node, work, tenant) -> None:
    served = node()
    work("-a", "--seconds", "20", "--memory", "300MiB", memory="4GiB", compute=50)
    work("-b", "--seconds", "20", "--memory", "100MiB", memory="2GiB", weight=300)
    work("-c", "--seconds", "20", "--idle", "--memory", "10MiB", request=20)
    names = [f"{tenant}-{x}" for x in "abc"]
    page = served.until(
        lambda s: (
            all(s.of("client_share_achieved_ratio", tenant=n) for n in names)
            and all(s.one("client_throttled", tenant=n) for n in names[:2])
            and s.one("scheduler_running_clients") == 2
            and s
        )
    )
    a, b, c = names
    assert page.one("client_memory_quota_bytes", tenant=a) == 4 * GIB
    assert page.one("client_memory_quota_bytes", tenant=c) == 0
    assert page.one("client_core_quota_config_percent", tenant=a) == 50
    assert page.one("client_core_request_percent", tenant=c) == 20
    assert page.one("client_weight", tenant=b) == 300
    assert 300 * MIB <= page.one("client_managed_allocated_bytes", tenant=a) < 301 * MIB
    # The driver's count holds the context too, and on this driver nothing lags behind.
    assert page.one("client_nvml_used_bytes", tenant=a) >= 300 * MIB + 518 * MIB
    assert page.one("client_memory_overhead_baseline_bytes", tenant=c) >= 518 * MIB
    assert page.one("client_memory_overhead_baseline_bytes", tenant=a) is None, "it held much from the start"
    assert page.one("client_share_entitled_ratio", tenant=a) < page.one(
        "client_share_entitled_ratio", tenant=b
    )
    assert page.one("client_gpu_seconds_total", tenant=b) > 0
    assert page.one("client_launches_total", tenant=b, kind="kernel") > 0
    assert page.one("client_enforcement_state", tenant=b, state="enforced") == 1
    assert page.one("client_memory_quota_source_info", tenant=a, source="env") == 1
    assert page.one("gpu_process_count") == 3
    assert page.one("gpu_unregistered_process_count") == 0
    assert page.one("gpu_memory_reserved_bytes") == 6 * GIB
    assert page.one("gpu_compute_requested_ratio") == pytest.approx(0.2)
    assert page.one("scheduler_turn_seconds_count") > 0
    assert sum(page.of("scheduler_drop_lock_total")) == page.one("scheduler_turn_seconds_count")
    assert page.one("registrations_total", result="accepted") == 3
    assert page.one("tenants") == page.one("workers") == page.one("longpoll_waiting") == 3
    assert page.one("gpu_memory_used_bytes") == pytest.approx(
        sum(page.of("client_nvml_used_bytes")) + 577_765_376, rel=0.01
    )
    info = next(x for x in page.labels("client_info") if x["tenant"] == a)
    assert info["user"] == "root" or os.geteuid()
    assert info["command"].startswith("python")
    assert not {"namespace", "pod", "client_id", "host_pid"} & info.keys()


def test_series_go_with_their_tenant(node, work, tenant) -> None:
    served = node()
    one = work("", "--seconds", "60", "--idle")
    served.until(lambda s: s.of("client_info", tenant=tenant))
    one.kill()
    served.until(lambda s: tenant not in s.text, within_s=3)


def test_debug_labels_tell_processes_apart(node, work, tenant) -> None:
    served = node(metrics_debug_labels="on")
    for _ in range(2):
        work("", "--seconds", "30", "--idle", "--memory", "10MiB", memory="4GiB")
    page = served.until(lambda s: len(s.of("client_nvml_used_bytes", tenant=tenant)) == 2 and s)
    pids = {x["host_pid"] for x in page.labels("client_info")}
    assert len(pids) == 2
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids)  # noqa: PTH110
    assert len({x["client_id"] for x in page.labels("client_info")}) == 2


def test_without_debug_labels_processes_are_added_up(node, work, tenant) -> None:
    served = node()
    for _ in range(2):
        work("", "--seconds", "30", "--idle", "--memory", "10MiB", memory="4GiB")
    twice = 2 * (10 + 518) * MIB
    served.until(lambda s: (s.one("client_nvml_used_bytes", tenant=tenant) or 0) >= twice)


def test_a_lost_card_stays_visible_and_comes_back(node, work, xid, tenant) -> None:
    served = node(env={"GPULIMIT_SIM_PROFILE": "two-h100"})
    page = served.until(lambda s: len(s.of("gpu_temperature_celsius")) == 2 and s)
    assert page.of("gpu_lost") == [0, 0]
    xid(0, 31)
    xid(0, 31)
    served.until(lambda s: sum(s.of("gpu_xid_errors_total", gpu_index="0", xid="31")) >= 1)
    xid(0, 79)
    page = served.until(lambda s: s.one("gpu_lost", gpu_index="0") == 1 and s)
    assert page.one("gpu_temperature_celsius", gpu_index="0") is None
    assert page.one("gpu_memory_used_bytes", gpu_index="0") is None
    assert page.one("gpu_memory_total_bytes", gpu_index="0") is not None
    assert page.one("gpu_temperature_celsius", gpu_index="1") is not None
    assert page.one("gpu_lost", gpu_index="1") == 0
    assert page.one("nvml_up") == 1
    assert page.one("sampler_errors_total", sampler="nvml", code="15") >= 1
    served.until(lambda s: s.one("gpu_xid_errors_total", gpu_index="0", xid="79") == 1)
    assert time.time() - served.metrics().one("gpu_last_xid_timestamp_seconds", gpu_index="0") < 30
    xid(0, 0)
    page = served.until(lambda s: s.one("gpu_lost", gpu_index="0") == 0 and s)
    assert page.one("gpu_temperature_celsius", gpu_index="0") is not None


def test_a_driver_call_that_hangs_costs_only_nvmls_own_metrics(node, work, tenant) -> None:
    served = node(env={"GPULIMIT_SIM_FAULTS": "nvmlDeviceGetTemperature:hang:after=8"})
    work("", "--seconds", "40", memory="4GiB")
    served.until(lambda s: s.of("client_gpu_seconds_total", tenant=tenant))
    page = served.until(lambda s: s.one("nvml_up") == 0 and s)
    assert page.one("sampler_up", sampler="nvml") == 0
    assert page.of("gpu_temperature_celsius") == []
    assert page.of("gpu_utilization_ratio") == []
    assert page.one("client_nvml_used_bytes", tenant=tenant) is None
    assert page.one("up") == page.one("sampler_up", sampler="books") == 1
    before = page.one("client_gpu_seconds_total", tenant=tenant)
    served.until(lambda s: s.one("client_gpu_seconds_total", tenant=tenant) > before)
    status, text = served.page("/readyz")
    assert status == 503
    assert "nvml" in text
    # It is killed, and the next one answers a few times before it hangs too.
    served.until(lambda s: s.one("nvml_up") == 1, within_s=15)
    assert served.metrics().one("sampler_errors_total", sampler="nvml", code="timeout") >= 1
    assert served.page("/readyz")[0] == 200


def test_one_field_that_fails_hides_no_other(node) -> None:
    faults = (
        "nvmlDeviceGetTemperature:fail=999",
        "nvmlDeviceGetPowerUsage:fail=3",
        "nvmlEventSetCreate:fail=3",
    )
    served = node(env={"GPULIMIT_SIM_FAULTS": ",".join(faults)})
    page = served.until(lambda s: s.of("gpu_utilization_ratio") and s)
    assert page.of("gpu_temperature_celsius") == page.of("gpu_power_watts") == []
    assert page.of("gpu_energy_joules_total")
    assert page.one("nvml_up") == 1
    assert page.one("sampler_errors_total", sampler="nvml", code="999") >= 1
    assert page.of("sampler_errors_total", sampler="nvml", code="3") == [], "not supported is no error"


def test_a_driver_that_comes_late_is_picked_up(daemon, daemon_env, built, tmp_path) -> None:
    folder = tmp_path / "late" / "sim"
    folder.mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).touch()
    (folder / "profiles").symlink_to(built.sim / "profiles")
    served = Node(
        daemon(is_awaited=False, nvml_interval="250ms", env={"GPULIMIT_LIB_DIR": str(folder.parent)})
    )
    eventually(lambda: is_up(served))
    page = served.until(lambda s: s.of("sampler_errors_total", sampler="nvml") and s)
    assert page.one("nvml_up") == 0
    assert page.one("up") == 1
    assert page.of("gpu_info") == []
    assert served.page("/readyz")[0] == 503
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).unlink()
        (folder / name).symlink_to(built.sim / name)
    page = served.until(lambda s: s.of("gpu_info") and s, within_s=20)
    assert page.one("nvml_up") == 1
    served.until(lambda _: served.page("/readyz")[0] == 200)


def is_up(served) -> bool:
    try:
        return served.page("/healthz")[0] == 200
    except OSError:
        return False


@needs_program("promtool")
def test_a_hostile_name_of_a_process_is_only_a_label(
    node, built, daemon_env, run_dir, tenant, start_process
) -> None:
    served = node()
    name = b'a"}\n1 \x1b[2J'
    program = (
        "import ctypes, sys, time\n"
        f"ctypes.CDLL(None).prctl(15, {name!r}, 0, 0, 0)\n"
        "cu = ctypes.CDLL('libcuda.so.1')\n"
        "cu.cuInit(0)\n"
        "c = ctypes.c_void_p()\n"
        "assert cu.cuCtxCreate_v2(ctypes.byref(c), 0, 0) == 0\n"
        "time.sleep(30)\n"
    )
    env = daemon_env | {
        "LD_LIBRARY_PATH": str(built.sim),
        "LD_PRELOAD": str(built.library),
        "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
        "GPULIMIT_TENANT": tenant,
        "GPULIMIT_MEMORY": "4GiB",
    }
    start_process([sys.executable, "-c", program], env=env)
    page = served.until(lambda s: s.of("client_nvml_used_bytes", tenant=tenant) and s)
    command = next(x["command"] for x in page.labels("client_info"))
    assert command.isprintable()
    assert command.startswith('a"}')
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page.text, capture_output=True, text=True, timeout=30
    )
    assert "error" not in done.stderr, done.stderr


def test_what_runs_without_quota_is_told(node, work, tenant) -> None:
    served = node()
    work("", "--seconds", "60", "--idle", memory="4GiB")
    served.until(lambda s: s.one("client_enforcement_state", tenant=tenant, state="enforced") == 1)
    stranger = work("", "--seconds", "60", "--idle", is_limited=False)
    page = served.until(lambda s: s.one("gpu_unregistered_process_count") == 1 and s)
    assert page.one("gpu_process_count") == 2
    served.until(lambda s: s.one("client_enforcement_state", tenant=tenant, state="off") == 1)
    stranger.kill()
    served.until(lambda s: s.one("client_enforcement_state", tenant=tenant, state="enforced") == 1)
    served.until(lambda s: s.one("gpu_unregistered_process_count") == 0)


def test_a_registered_process_that_ends_is_never_one_without_quota(node, work, tenant) -> None:
    """NVML's last answer names it for a while, and as a zombie it keeps its pid."""
    served = node()
    stay, leave = (work("", "--seconds", "60", "--idle", memory="4GiB") for _ in range(2))
    served.until(lambda s: s.one("workers") == 2 and s.one("gpu_process_count") == 2)
    pid = served.daemon.process.pid
    probe = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    os.kill(probe, signal.SIGSTOP)
    os.kill(leave.pid, signal.SIGKILL)  # and nothing waits for it
    served.until(lambda s: s.one("workers") == 1)
    end, stale = time.monotonic() + 2.0, 0
    while time.monotonic() < end:
        page = served.metrics()
        assert page.one("gpu_unregistered_process_count") in (0, None)
        assert page.one("client_enforcement_state", tenant=tenant, state="off") in (0, None)
        stale += page.one("gpu_process_count") == 2
        time.sleep(0.05)
    os.kill(probe, signal.SIGCONT)
    assert stale, "NVML's answer was older than the end of the process"
    served.until(lambda s: s.one("gpu_process_count") == 1 and s.one("gpu_unregistered_process_count") == 0)
    assert stay.poll() is None


def test_a_tenant_that_limits_itself_is_standalone(node, work, tenant) -> None:
    served = node()
    work("", "--seconds", "60", "--idle", memory="4GiB", socket="")
    page = served.until(lambda s: s.of("client_info", tenant=tenant) and s)
    assert page.one("client_enforcement_state", tenant=tenant, state="standalone") == 1
    assert page.one("client_memory_quota_bytes", tenant=tenant) == 4 * GIB
    assert page.one("gpu_memory_reserved_bytes") == 0, "this daemon has promised nothing"
    served.until(lambda s: s.one("gpu_process_count") == 1)
    assert served.metrics().one("gpu_unregistered_process_count") == 0


def test_a_scraper_gets_the_format_that_it_asks_for(node) -> None:
    served = node()
    request = urllib.request.Request(
        f"http://{served.address}/metrics",
        headers={"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert answer.headers["Content-Encoding"] == "gzip"
        assert list(parse_openmetrics(gzip.decompress(answer.read()).decode()))


def test_many_scrapes_at_once_are_all_answered(node) -> None:
    served = node()
    served.until(lambda s: s.of("gpu_info"))
    statuses: list[int] = []

    def scrape() -> None:
        statuses.extend(served.page()[0] for _ in range(5))

    threads = [threading.Thread(target=scrape) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == 100
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) > 50


def test_shares_come_from_a_ratio_where_no_quota_says_them(node, work, tenant, tmp_path) -> None:
    ratios = tmp_path / "gpu_allocation.txt"
    ratios.write_text("4\n")
    served = node(metrics_ratio_file=str(ratios), metrics_compat="k8s-vgpu-monitor")
    work("", "--seconds", "60", "--idle", weight=10)
    page = served.until(lambda s: s.of("pod_total_gpu_memory", tenant=tenant) and s)
    card = page.one("gpu_memory_total_bytes")
    assert page.one("pod_total_gpu_memory", tenant=tenant) == card / 4
    mib = [v for n, _, v in page.samples if n == "pod_total_gpu_memory"]
    assert mib == [card / 4 / MIB]
    ratios.write_text("0=2\n")
    served.until(lambda s: s.one("pod_total_gpu_memory", tenant=tenant) == card / 2)


SHORT = """
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
	unsigned long long pointer;

	if (!cuda || ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0))
		return 1;
	if (((int (*)(void **, unsigned, int))dlsym(cuda, "cuCtxCreate_v2"))(&context, 0, 0))
		return 2;
	return ((int (*)(unsigned long long *, unsigned long))dlsym(cuda, "cuMemAlloc_v2"))(&pointer, 1 << 20);
}
"""
AT_ONCE = 4


@pytest.mark.timeout(1800)
def test_short_clients_leave_nothing_behind(
    node, built, compile_c, daemon_env, run_dir, tenant, run_process
) -> None:
    """GPULIMIT_CHURN says how many; 10000 take less than a minute."""
    served = node()
    program = compile_c(SHORT, "-ldl", name="short")
    one = f'GPULIMIT_TENANT={tenant}-$(($1 % 8)) LD_PRELOAD={built.library} {program} || echo "$1: $?" >&2'
    env = daemon_env | {
        "LD_LIBRARY_PATH": str(built.sim),
        "GPULIMIT_SOCKET": str(run_dir / "daemon.sock"),
        # On a busy machine several processes of one tenant overlap, with a context of 518 MiB each.
        "GPULIMIT_MEMORY": "4GiB",
        "GPULIMIT_LOG": "warn",  # a process that fails says why
    }

    def churn(count: int) -> Scrape:
        argv = ["sh", "-c", f"seq {count} | xargs -P {AT_ONCE} -n 1 sh -c '{one}' sh"]
        done = run_process(argv, env=env, timeout=1700)
        failed = [line for line in done.stderr.splitlines() if not line.startswith("gpulimit[")]
        assert not failed, done.stderr
        served.until(lambda s: s.one("workers") == 0, within_s=60)
        # On a busy machine NVML may be late, and GPUs' figures are not served meanwhile.
        return served.until(
            lambda s: tenant not in s.text and s.of("gpu_utilization_ratio") and s, within_s=60
        )

    before = churn(100)
    churn(int(os.environ.get("GPULIMIT_CHURN", "500")))
    served.until(lambda s: shape(s) == shape(before), within_s=60)
    was = figures(before)
    # Segments are closed a sweep after their tenant has gone.
    served.until(lambda s: figures(s)["process_open_fds"] <= was["process_open_fds"], within_s=60)
    now = figures(served.metrics())["process_resident_memory_bytes"]
    assert now < was["process_resident_memory_bytes"] + 8 * MIB


def shape(page: Scrape) -> Counter[tuple[str, ...]]:
    """Return the number of series by name and labels. NVML may be late: the daemon's errors are left out."""
    return Counter((n, *has) for n, has, _ in page.samples if n != "gpulimit_sampler_errors_total")


def figures(page: Scrape) -> dict[str, float]:
    return {name: value for name, _, value in page.samples}
