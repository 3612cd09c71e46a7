# SPDX-License-Identifier: Apache-2.0
"""Pages of guests as three exporters write them."""

from __future__ import annotations

GIB = 1 << 30
UUID = "GPU-00000000-0000-0000-0000-{:012x}"
ALL = {
    "utilization_percent": 87,
    "memory_utilization_percent": 31,
    "memory_used_bytes": 12 * GIB,
    "memory_total_bytes": 40 * GIB,
    "temperature_celsius": 61,
    "power_usage_milliwatts": 311_500,
    "ecc_errors_single_bit_total": 4,
    "ecc_errors_double_bit_total": 1,
    "encoder_utilization_percent": 12,
    "decoder_utilization_percent": 3,
    "running_processes": 2,
}


def own(
    number: int = 1, *, boot_id: str = "b1", used: int = 12 * GIB, status: int = 0, more: str = ""
) -> bytes:
    """Return our agent's page of one GPU."""
    gpu = f'gpu_uuid="{UUID.format(number)}",gpu_index="0"'
    return f"""\
# HELP gpulimit_gpu_info Constant 1 for each GPU ever seen.
# TYPE gpulimit_gpu_info gauge
gpulimit_gpu_info{{{gpu},gpu_name="NVIDIA A100-SXM4-40GB",driver_version="580.159.04"}} 1
gpulimit_gpu_memory_total_bytes{{{gpu}}} {40 * GIB}
gpulimit_gpu_memory_used_bytes{{{gpu}}} {used}
gpulimit_gpu_utilization_ratio{{{gpu}}} 0.87
gpulimit_gpu_memory_utilization_ratio{{{gpu}}} 0.31
gpulimit_gpu_process_count{{{gpu}}} 2
gpulimit_gpu_encoder_utilization_ratio{{{gpu}}} 0.12
gpulimit_gpu_decoder_utilization_ratio{{{gpu}}} 0.03
# TYPE gpulimit_gpu_ecc_errors_total counter
gpulimit_gpu_ecc_errors_total{{{gpu},kind="corrected"}} 4
gpulimit_gpu_ecc_errors_total{{{gpu},kind="uncorrected"}} 1
gpulimit_gpu_power_watts{{{gpu}}} 311.5
gpulimit_gpu_temperature_celsius{{{gpu}}} 61
gpulimit_guest_agent_info{{version="0.1.0",boot_id="{boot_id}"}} 1
gpulimit_guest_agent_status {status}
{more}""".encode()


def dcgm() -> bytes:
    """Return dcgm-exporter's page of one GPU and one MIG instance of another, as its default fields are."""
    gpu = 'gpu="0",UUID="{}",pci_bus_id="00000000:06:00.0",device="nvidia0",modelName="NVIDIA A100-SXM4-40GB"'
    one = gpu.format(UUID.format(1)) + ',Hostname="victim",DCGM_FI_DRIVER_VERSION="580.159.04"'
    mig = one + ',GPU_I_PROFILE="1g.5gb",GPU_I_ID="7"'
    values = {
        "SM_CLOCK": 1410,
        "GPU_TEMP": 61,
        "POWER_USAGE": 311.5,
        "GPU_UTIL": 87,
        "MEM_COPY_UTIL": 31,
        "ENC_UTIL": 12,
        "DEC_UTIL": 3,
        "FB_FREE": 27 * 1024,
        "FB_USED": 12 * 1024,
        "FB_RESERVED": 1024,
        "ECC_SBE_VOL_TOTAL": 4,
        "ECC_DBE_VOL_TOTAL": 1,
    }
    lines = [f"DCGM_FI_DEV_{name}{{{one}}} {value}" for name, value in values.items()]
    lines += [f"DCGM_FI_DEV_FB_USED{{{mig}}} 999", f"DCGM_FI_DEV_GPU_UTIL{{{mig}}} 99"]
    return "\n".join([*lines, "go_goroutines 8", ""]).encode()


def nvidia_gpu_exporter() -> bytes:
    """Return nvidia_gpu_exporter's page: UUIDs without GPU-, exponents."""
    uuid = UUID.format(1).removeprefix("GPU-")
    values = {
        "utilization_gpu_ratio": 0.87,
        "utilization_memory_ratio": 0.31,
        "memory_used_bytes": "1.2884901888e+10",
        "memory_total_bytes": "4.294967296e+10",
        "temperature_gpu": 61,
        "power_draw_watts": 311.5,
        "ecc_errors_corrected_volatile_total": 4,
        "ecc_errors_uncorrected_volatile_total": 1,
        "utilization_encoder_ratio": 0.12,
        "utilization_decoder_ratio": 0.03,
        "compute_apps": 2,
        "index": 0,
        "pstate": 0,
    }
    lines = [f'nvidia_smi_gpu_info{{uuid="{uuid}",name="NVIDIA A100-SXM4-40GB",vbios_version="92"}} 1']
    lines += [f'nvidia_smi_{name}{{uuid="{uuid}"}} {value}' for name, value in values.items()]
    return "\n".join([*lines, "nvidia_smi_command_exit_code 0", ""]).encode()
