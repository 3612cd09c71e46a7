# SPDX-License-Identifier: Apache-2.0
"""`gpulimit demo` on a simulated GPU, shortened."""

from __future__ import annotations

import sys

from limiter import segment


def test_the_demo_keeps_its_promises_and_cleans_up(start_process, sim_env) -> None:
    argv = [sys.executable, "-m", "limiter", "demo", "--sim", "--seconds", "4"]
    process = start_process(argv, env=sim_env)
    out, err = process.communicate(timeout=50)
    assert process.returncode == 0, out + err
    assert "SIMULATED GPU" in out
    assert "refused at" in out
    assert "has come back" in out
    assert "everything as promised (on a simulated GPU)" in out
    assert "\033" not in out
    assert [t for t in segment.tenants() if t.startswith(f"demo-{process.pid}-")] == []
