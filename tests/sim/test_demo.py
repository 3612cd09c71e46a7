# SPDX-License-Identifier: Apache-2.0
"""`gpulimit demo` on a simulated GPU, shortened."""

from __future__ import annotations

from limiter import segment


def test_the_demo_keeps_its_promises_and_cleans_up(gpulimit, sim_env) -> None:
    before = segment.tenants()
    done = gpulimit("demo", "--sim", "--seconds", "4", timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIMULATED GPU" in done.stdout
    assert "refused at" in done.stdout
    assert "has come back" in done.stdout
    assert "everything as promised (on a simulated GPU)" in done.stdout
    assert "\033" not in done.stdout
    assert [t for t in segment.tenants() if t.startswith("demo-") and t not in before] == []
