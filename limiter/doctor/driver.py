# SPDX-License-Identifier: Apache-2.0
"""Checks that need a GPU, real or simulated: the driver, the hooks, and a quota."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from limiter import paths, tenants
from limiter.doctor.check import Check, fail, ok, warn
from limiter.errors import NotInstalled
from limiter.units import show_bytes

PROBE_TIMEOUT_S = 30
QUOTA_BYTES = 1 << 30
"""Quota of the test program: larger than a context, so that allocations can be tried too."""


def checks(environment: Mapping[str, str]) -> Iterator[Check]:
    """Check the driver and, if there is one, hooks and a quota."""
    answer = probe("driver", environment)
    yield from driver(answer)
    if "error" in answer or not answer["gpus"]:
        return
    try:
        library = str(paths.library())
    except NotInstalled:
        return  # another check reports it
    limited = dict(environment) | {"LD_PRELOAD": library}
    yield hooks(probe("hooks", limited))
    yield quota(limited)


def probe(what: str, environment: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    """Run one probe in a child process; a failure is returned under "error"."""
    command = [sys.executable, "-m", "limiter.doctor.probe", what, *arguments]
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {PROBE_TIMEOUT_S} s"}
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        return {"error": f"the check ended with status {done.returncode}: {last}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def driver(answer: Mapping[str, Any]) -> Iterator[Check]:
    """Report the driver and the GPUs."""
    if "error" in answer:
        advice = "install the NVIDIA driver, give the container its GPU, or try `gpulimit doctor --sim`"
        yield fail("driver", answer["error"], advice)
        return
    cuda = f"CUDA {answer['cuda'] // 1000}.{answer['cuda'] % 1000 // 10}"
    version = f"{answer['driver'] or 'version unknown'}, {cuda}"
    if answer["simulated"]:
        yield ok("driver", f"SIMULATED, {version}")
    else:
        yield ok("driver", f"NVIDIA {version}")
    if answer["driver"] is None:
        advice = "mount libnvidia-ml.so.1; without it what contexts cost cannot be measured and is estimated"
        yield warn("NVML", "libnvidia-ml.so.1 is missing or does not answer", advice)
    if not answer["gpus"]:
        yield fail("GPUs", "none", "check CUDA_VISIBLE_DEVICES and what the container may see")
    for number, gpu in enumerate(answer["gpus"]):
        yield ok(f"GPU {number}", f"{gpu['name']}, {show_bytes(gpu['total_bytes'])}")


def hooks(answer: Mapping[str, Any]) -> Check:
    """Check that the library replaces every driver call that it must see."""
    if "error" in answer:
        return fail("hooks", answer["error"], "report this, with the output of `gpulimit version --verbose`")
    escaped = sorted({*answer["escaped"], *answer["missed"]})
    text = f"{answer['present']} of {answer['hooks']} calls exist in this driver and are taken over"
    if escaped:
        text = f"{len(escaped)} calls are not taken over: {', '.join(escaped[:5])}"
        return fail("hooks", text, "another preloaded library may come first; else report this")
    return ok("hooks", f"{text} by dlsym; {answer['asked']} answers of cuGetProcAddress are ours")


def quota(limited: Mapping[str, str]) -> Check:
    """Check that a program under quota really is limited."""
    tenant = f"doctor-{uuid.uuid4().hex[:12]}"
    settings = {"GPULIMIT_MEMORY": str(QUOTA_BYTES), "GPULIMIT_TENANT": tenant}
    without = {k: v for k, v in limited.items() if not k.startswith(("GPULIMIT_", "CUDA_DEVICE_"))}
    kept = {k: limited[k] for k in limited if k.startswith("GPULIMIT_SIM_") or k == "GPULIMIT_LIB_DIR"}
    try:
        answer = probe("quota", without | kept | settings, str(QUOTA_BYTES))
    finally:
        tenants.remove_if_unused(tenant)
    return judge(answer)


def judge(answer: Mapping[str, Any]) -> Check:
    """Judge the memory that a program under quota saw and got."""
    name, shown = "quota", show_bytes(QUOTA_BYTES)
    report = "report this, with the output of `gpulimit version --verbose`"
    if "error" in answer:
        return fail(name, answer["error"], report)
    if answer["total_bytes"] > QUOTA_BYTES:
        text = f"a program with {shown} is told that it has {show_bytes(answer['total_bytes'])}"
        return fail(name, text, report)
    if "context" in answer:
        return warn(name, f"no context within {shown}: {answer['context']}", "give programs more than that")
    if answer["small"]:
        return fail(name, f"an allocation inside the quota fails: {answer['small']}", "is the card full?")
    if not answer["large"]:
        return fail(name, f"a program with {shown} can allocate more", report)
    return ok(name, f"a program with {shown} is told so, gets it, and is refused more ({answer['large']})")
