# SPDX-License-Identifier: Apache-2.0
"""Results of a job of several ranks, for people and for programs."""

from __future__ import annotations

from typing import Any

from limiter.workload.job_settings import JobSettings


def job_summary(settings: JobSettings, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ranks' results with what they are together, for --json.

    A job of ranks that wait for each other is as fast as its slowest rank.
    """
    return {
        "device": ranks[0]["device"],
        "simulated": ranks[0]["simulated"],
        "ranks": settings.ranks,
        "collective": settings.mode,
        "step_gpu_s": settings.step_ns / 1e9,
        "steps": min(rank["steps"] for rank in ranks),
        "seconds": max(rank["seconds"] for rank in ranks),
        "steps_per_s": min(rank["steps_per_s"] for rank in ranks),
        "first_step_s": max(rank["first_step_s"] for rank in ranks),
        "longest_gap_s": max(rank["longest_gap_s"] for rank in ranks),
        "per_rank": ranks,
    }


def describe_job(data: dict[str, Any]) -> str:
    """Return the summary as a few lines for people."""
    lines = [
        f"{data['device']}, {data['ranks']} ranks ({data['collective']})",
        f"{data['seconds']:.2f} s: {data['steps']:,} steps, {data['steps_per_s']:,.1f} a second",
        f"first step after {data['first_step_s']:.2f} s",
    ]
    lines += [
        f"rank {rank['rank']} on GPU {rank['ordinal']}: {rank['steps_per_s']:,.1f} a second, "
        f"longest wait {rank['longest_gap_s'] * 1e3:.1f} ms"
        for rank in data["per_rank"]
    ]
    return "\n".join(lines)
