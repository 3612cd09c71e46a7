# SPDX-License-Identifier: Apache-2.0
"""Two made-up virtual machines: of one everything is known, the other does not answer."""

from __future__ import annotations

from hypervisor.metrics.snapshot import GuestGpu, GuestView

GIB = 1 << 30
UP = GuestView(
    namespace="ml",
    name="trainer",
    node="node-1",
    is_up=True,
    duration_s=0.004,
    last_success_at_s=1_700_000_000.25,
    agent_status=0,
    gpus=(
        GuestGpu(
            0,
            "GPU-00000000-0000-0000-0000-0000000000aa",
            "NVIDIA A100-SXM4-40GB",
            {
                "utilization_percent": 87,
                "memory_utilization_percent": 31,
                "memory_used_bytes": 12 * GIB,
                "memory_total_bytes": 40 * GIB,
                "temperature_celsius": 61,
                "power_usage_milliwatts": 311_500,
                "ecc_errors_single_bit_total": 4,
                "ecc_errors_double_bit_total": 0,
                "encoder_utilization_percent": 0,
                "decoder_utilization_percent": 12.5,
                "running_processes": 2,
            },
        ),
    ),
    dropped={"not_listed": 31},
    failures={"timeout": 2},
)
DOWN = GuestView("ml", "silent", "node-1", is_up=False, failures={"refused": 7})
