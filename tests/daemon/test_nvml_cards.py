# SPDX-License-Identifier: Apache-2.0
"""A daemon on a node with two cards, of which NVML does not say what it should."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import pytest

from tests.conftest import clean_environ
from tests.daemon.conftest import eventually
from tests.metrics.conftest import get

MEMORY = "nvmlDeviceGetMemoryInfo"
TWO = {"GPULIMIT_SIM_PROFILE": "two-h100"}


def faulty(faults: str) -> dict[str, str]:
    return TWO | {"GPULIMIT_SIM_FAULTS": faults, "GPULIMITD_NVML_INTERVAL": "200ms"}


def texts(node: Any, kind: str) -> list[str]:
    return [event["text"] for event in node.state()["events"] if event["kind"] == kind]


def metric(node: Any, name: str, labels: str = "") -> list[float]:
    _, page = get(f"http://127.0.0.1:{node.metrics_port}/metrics")
    pattern = rf"^gpulimit_{name}(?:{{[^}}]*{labels}[^}}]*}})? (\S+)$"
    return [float(value) for value in re.findall(pattern, page, re.MULTILINE)]


@pytest.mark.parametrize("call", [MEMORY, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"])
def test_a_bad_card_is_shown_with_its_reason_and_the_other_works(daemon, client, run_process, call) -> None:
    node = daemon(env=faulty(f"{call}:fail=999:gpu=0"))
    state = node.state()
    [good], [bad] = state["gpus"], state["failed_gpus"]
    assert good["index"] == 1 and good["healthy"] and state["daemon"]["not_ready"] == []
    assert bad["index"] == 0 and "Unknown Error" in bad["error"]
    [text] = texts(node, "gpu_failed")
    assert "card 0" in text and "cannot be used: Unknown Error" in text
    eventually(lambda: metric(node, "gpus_failed") == [1])
    assert metric(node, "nvml_up") == [1]
    eventually(lambda: len(metric(node, "gpu_memory_used_bytes")) == 1)
    env = clean_environ() | {"GPULIMIT_SOCKET": node.socket}
    said = run_process([sys.executable, "-P", "-m", "limiter", "status"], env=env, expect=0)
    assert "GPU 0" in said.stdout and "cannot be used: Unknown Error" in said.stdout
    assert client().answer["tenant"]


def test_no_card_that_works_is_said_with_the_reason(daemon) -> None:
    node = daemon(env=faulty(f"{MEMORY}:fail=999"), is_awaited=False)
    failed = eventually(lambda: failed_gpus(node), within_s=20)
    assert [(card["index"], card["error"]) for card in failed] == [(0, "Unknown Error"), (1, "Unknown Error")]
    [reason] = node.state()["daemon"]["not_ready"]
    assert reason == "no GPU known: card 0: Unknown Error"
    assert "cannot be used: Unknown Error" in node.log.read_text()


def failed_gpus(node: Any) -> list[dict[str, Any]]:
    try:
        return list(node.state()["failed_gpus"])
    except OSError:
        return []


@pytest.mark.parametrize(
    ("option", "source", "said"), [("", "cuda", "by CUDA"), ("*=9GiB", "option", "by gpu_memory")]
)
def test_cards_whose_memory_nvml_does_not_know_work(daemon, client, option, source, said) -> None:
    node = daemon(env=faulty(f"{MEMORY}:fail=3"), **({"gpu_memory": option} if option else {}))
    state = node.state()
    assert [gpu["memory_source"] for gpu in state["gpus"]] == [source] * 2
    assert all(gpu["memory_bytes"] == 9 << 30 for gpu in state["gpus"]) == bool(option)
    assert all(gpu["memory_bytes"] > 8 << 30 for gpu in state["gpus"])
    found = texts(node, "memory_total")
    assert len(found) == 2 and all(said in text for text in found)
    assert client().answer["tenant"]
    time.sleep(1.0)
    assert texts(node, "memory_total") == found, "it is said once"


def test_a_card_that_hangs_takes_no_other_cards_figures(daemon) -> None:
    fault = "nvmlDeviceGetTemperature:hang:gpu=0:after=5"
    node = daemon(env=faulty(fault), nvml_timeout="500ms")
    eventually(lambda: not node.state()["gpus"][0]["healthy"], within_s=20)
    state = node.state()
    assert "NVML has not answered for 0.5 s" in state["gpus"][0]["error"] and state["gpus"][1]["healthy"]
    assert state["daemon"]["not_ready"] == []
    index = 'gpu_index="{}"'
    end = time.monotonic() + 4
    while time.monotonic() < end:
        assert metric(node, "nvml_up") == [1]
        assert len(metric(node, "gpu_temperature_celsius", index.format(1))) == 1
        time.sleep(0.1)
    assert not metric(node, "gpu_temperature_celsius", index.format(0))
    assert "did not answer" not in node.log.read_text(), "it is asked by the same process throughout"
