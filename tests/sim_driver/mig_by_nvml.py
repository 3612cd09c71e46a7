# SPDX-License-Identifier: Apache-2.0
"""Prints card 0 with its MIG devices as NVML has them: as it is, taken apart anew, and out of MIG mode."""

from __future__ import annotations

import ctypes
import json

import pynvml

pynvml.nvmlInit()
sim = ctypes.CDLL("libnvidia-ml.so.1")
card = pynvml.nvmlDeviceGetHandleByIndex(0)


def look() -> None:
    devices = {}
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
        except pynvml.NVMLError_NotFound:
            continue
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        again = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        devices[index] = {"uuid": uuid, "name": pynvml.nvmlDeviceGetName(again)}
    try:
        utilisation = str(pynvml.nvmlDeviceGetUtilizationRates(card).gpu)
    except pynvml.NVMLError as error:
        utilisation = str(error)
    mode = pynvml.nvmlDeviceGetMigMode(card)
    print(json.dumps({"mode": list(mode), "utilisation": utilisation, "devices": devices}))


look()
assert sim.gpulimit_sim_mig(0, b"3g.40gb,-,2g.20gb") == 0
look()
assert sim.gpulimit_sim_mig(0, b"off") == 0
look()
