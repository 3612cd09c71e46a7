# SPDX-License-Identifier: Apache-2.0
"""A real agent on a simulated machine, asked directly and by a real collector."""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hypervisor.guests import agent as program
from hypervisor.scraper.endpoint import LOCAL_CID
from hypervisor.scraper.parser import Page, parse
from tests.daemon.conftest import UnixConnection, eventually
from tests.guests.conftest import PORT, Relay, of, relay, series
from tests.k8s.conftest import certificate
from tests.metrics.conftest import XID_PROGRAM
from tests.remote.test_dial import vsock_reaches_itself


def ask(path: Path, target: str, **headers: str) -> tuple[int, bytes]:
    connection = UnixConnection(str(path))
    try:
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def metrics(path: Path) -> Page:
    try:
        return parse(ask(path, "/metrics")[1])
    except OSError:
        return Page()


def until(path: Path, check: Any, *, within_s: float = 20.0) -> Any:
    return eventually(lambda: check(metrics(path)), within_s=within_s)


def test_it_serves_what_nvml_says_and_nothing_of_quotas(agent, folder) -> None:
    path = folder / "a.sock"
    agent("--listen", f"unix://{path}", "--nvml-interval", "200ms", env={"GPULIMIT_SIM_PROFILE": "two-h100"})
    page = until(path, lambda p: p if of(p, "gpulimit_guest_agent_status") == [0] else None)
    assert of(page, "gpulimit_nvml_up") == [1]
    assert [labels["gpu_index"] for labels, _ in page.of("gpulimit_gpu_memory_used_bytes")] == ["0", "1"]
    assert of(page, "gpulimit_gpu_ecc_errors_total", kind="uncorrected") == [0, 0]
    assert not [
        name for name in page.samples if "reserved" in name or "requested" in name or "client" in name
    ]
    ((about, _),) = page.of("gpulimit_guest_agent_info")
    assert about["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert not page.dropped and not page.repaired
    document = json.loads(ask(path, "/v1/gpus")[1])
    assert document["version"] == 1 and document["error"] == {"code": 0, "message": ""}
    device = document["devices"][1]
    assert device["index"] == 1 and device["memory_total_bytes"] > 1 << 33
    assert device["encoder_utilization_percent"] is None, "this card has no encoder to ask about"
    assert ask(path, "/readyz")[0] == ask(path, "/healthz")[0] == 200
    assert path.stat().st_mode & 0o777 == 0o660


def test_without_a_driver_it_is_alive_and_says_so(agent, folder, agent_env) -> None:
    path = folder / "a.sock"
    agent("--listen", f"unix://{path}", is_simulated=False)
    page = until(path, lambda p: p if of(p, "gpulimit_guest_agent_status") == [12] else None)
    assert of(page, "gpulimit_nvml_up") == [0] and "gpulimit_gpu_info" not in page.samples
    document = json.loads(ask(path, "/v1/gpus")[1])
    assert document["devices"] == [] and document["error"]["code"] == 12
    assert "Not Found" in document["error"]["message"]
    status, why = ask(path, "/readyz")
    assert status == 503 and b"NVML error 12" in why
    assert ask(path, "/healthz")[0] == 200


def test_a_driver_that_hangs_takes_figures_away_and_comes_back(agent, folder) -> None:
    path = folder / "a.sock"
    agent(
        *("--listen", f"unix://{path}", "--nvml-interval", "100ms", "--nvml-timeout", "500ms"),
        env={"GPULIMIT_SIM_FAULTS": "nvmlDeviceGetTemperature:hang:after=20"},
    )
    until(path, lambda p: of(p, "gpulimit_gpu_temperature_celsius"))
    page = until(path, lambda p: p if of(p, "gpulimit_guest_agent_status") == [10] else None)
    assert not of(page, "gpulimit_gpu_temperature_celsius") and of(page, "gpulimit_gpu_info") == [1]
    until(path, lambda p: of(p, "gpulimit_gpu_temperature_celsius"))


def test_a_driver_that_comes_later_is_found(agent, folder, built) -> None:
    libraries = folder / "lib"
    libraries.mkdir()
    path = folder / "a.sock"
    options = ("--listen", f"unix://{path}", "--nvml-interval", "100ms")
    agent(*options, is_simulated=False, env={"LD_LIBRARY_PATH": str(libraries)})
    until(path, lambda p: of(p, "gpulimit_guest_agent_status") == [12])
    for name in ("profiles", "libnvidia-ml.so.1"):
        (libraries / name).symlink_to(built.sim / name)
    page = until(path, lambda p: p if of(p, "gpulimit_guest_agent_status") == [0] else None)
    assert of(page, "gpulimit_gpu_temperature_celsius")


def test_a_lost_gpu_hides_no_other(agent, folder, agent_env, built, run_process) -> None:
    path = folder / "a.sock"
    profile = {"GPULIMIT_SIM_PROFILE": "two-h100"}
    agent("--listen", f"unix://{path}", "--nvml-interval", "100ms", env=profile)
    until(path, lambda p: len(of(p, "gpulimit_gpu_temperature_celsius")) == 2)
    env = agent_env | profile | {"LD_LIBRARY_PATH": str(built.sim)}
    run_process([sys.executable, "-c", XID_PROGRAM, "0", "79"], env=env, expect=0)
    page = until(path, lambda p: p if of(p, "gpulimit_guest_agent_status") == [15] else None)
    assert of(page, "gpulimit_nvml_up") == [1]
    assert of(page, "gpulimit_gpu_lost", gpu_index="0") == [1]
    assert not of(page, "gpulimit_gpu_temperature_celsius", gpu_index="0")
    assert len(of(page, "gpulimit_gpu_temperature_celsius", gpu_index="1")) == 1
    assert "is lost" in json.loads(ask(path, "/v1/gpus")[1])["error"]["message"]


def test_token_and_tls_over_a_monitors_socket(agent, folder, collector, machine, tmp_path) -> None:
    cert, key = certificate(tmp_path, "guest-a")
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    token.write_text("a-secret-of-the-guest\n")
    wrong.write_text("not-the-right-secret\n")
    token.chmod(0o600)
    path = folder / "inner.sock"
    agent(
        "--listen",
        f"unix://{path}",
        "--token-file",
        str(token),
        "--tls-cert",
        str(cert),
        "--tls-key",
        str(key),
    )
    eventually(path.exists, within_s=20)
    trust = {"ca_file": str(cert), "server_name": "guest-a"}
    made = [
        machine("good", extra={"token_file": str(token), **trust}),
        machine("stranger", extra={"token_file": str(wrong), **trust}),
        machine(
            "other-name", extra={"token_file": str(token), "ca_file": str(cert), "server_name": "guest-b"}
        ),
        machine("plain", extra={"token_file": str(token)}),
        machine("no-file", extra={"token_file": str(tmp_path / "absent"), **trust}),
    ]
    for one in made:
        one.stop()
        one.monitor = Relay(one.path, {PORT: relay(path)})
    served = collector(*made)
    page = served.until(lambda p: p if series(p, "good") else None)
    wanted = {"stranger": "status", "other-name": "tls", "plain": "broken", "no-file": "tls"}
    for name, reason in wanted.items():
        served.until(
            lambda p, n=name, r=reason: of(p, "gpulimit_guest_scrape_failures_total", name=n, reason=r)
        )
        assert not series(page, name)


def test_a_restart_takes_over_the_socket_of_one_that_was_killed(agent, folder) -> None:
    path = folder / "a.sock"
    first = agent("--listen", f"unix://{path}")
    until(path, lambda p: p.samples)
    second = agent("--listen", f"unix://{path}")
    assert second.process.wait(20) == 2
    assert f"unix://{path}: Address already in use" in second.log.read_text()
    first.process.kill()
    first.process.wait(10)
    agent("--listen", f"unix://{path}")
    until(path, lambda p: p.samples)


def test_who_holds_connections_open_keeps_nobody_out(agent, folder) -> None:
    path = folder / "a.sock"
    agent("--listen", f"unix://{path}")
    until(path, lambda p: p.samples)
    idle = []
    for _ in range(200):
        plug = socket.socket(socket.AF_UNIX)
        plug.connect(str(path))
        idle.append(plug)
    try:
        assert ask(path, "/healthz")[0] == 200
    finally:
        for plug in idle:
            plug.close()


@pytest.mark.skipif(not vsock_reaches_itself(), reason="the kernel has no vsock_loopback")
def test_over_vsock(agent, collector, machine) -> None:
    with socket.socket(socket.AF_VSOCK) as probe:
        probe.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
        port = probe.getsockname()[1]
    agent("--listen", f"vsock://:{port}")
    served = collector()
    served.until(lambda p: of(p, "gpulimit_guest_collector_active"))
    served.guests.write_text(f'[[guest]]\nname = "a"\naddress = "vsock://{LOCAL_CID}:{port}"\n')
    served.until(lambda p: series(p, "a") >= 7, within_s=30)


@pytest.mark.skipif(not hasattr(socket, "AF_VSOCK"), reason="Python has no AF_VSOCK")
def test_a_vsock_port_that_is_taken_is_named(agent) -> None:
    with socket.socket(socket.AF_VSOCK) as taken:
        try:
            taken.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
        except OSError as error:
            pytest.skip(f"no vsock: {error}")
        taken.listen(1)
        port = taken.getsockname()[1]
        one = agent("--listen", f"vsock://:{port}")
        assert one.process.wait(20) == 2
    assert f"listen: vsock://:{port}: Address already in use" in one.log.read_text()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"listen": "9402"}, "'9402': is not vsock://"),
        ({"listen": "hvsock:///a:1"}, "hvsock"),
        ({"tls_cert": "/absent"}, "needs tls_key"),
        ({"tls_cert": "/absent", "tls_key": "/absent"}, "/absent"),
        ({"token_file": "/absent"}, "token_file: /absent"),
        ({"vsock_peers": "all"}, "--vsock-peers"),
        ({"nvml_interval": "1ms"}, "--nvml-interval"),
    ],
)
def test_options_that_cannot_be_used_are_named(options, named, capsys, monkeypatch, folder) -> None:
    monkeypatch.setattr(program.log, "set_up", lambda **_: None)
    settings = {"listen": f"unix://{folder}/a.sock", **options}
    flags = [f for name, value in settings.items() for f in (f"--{name.replace('_', '-')}", value)]
    assert program.main(flags) == 2
    assert named in capsys.readouterr().err


def test_it_ends_at_once_when_told(agent, folder) -> None:
    path = folder / "a.sock"
    one = agent("--listen", f"unix://{path}")
    until(path, lambda p: p.samples)
    begin = time.monotonic()
    one.stop()
    assert one.process.returncode == 0 and time.monotonic() - begin < 5
