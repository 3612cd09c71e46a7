# SPDX-License-Identifier: Apache-2.0
"""Everything that the probe reads of one GPU beyond what the daemon cannot do without.

Each field is asked for on its own: one that fails is missing, and the others are there. What the card does
not support is asked for once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pynvml

GPU_IS_LOST = 15
UNSUPPORTED = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_FunctionNotFound,
)
"""Answers that stay until the driver, or the card's mode, is another."""
CLOCKS = 4


def first_of(pair: Any) -> int | None:
    """Return the utilisation, of a utilisation and its sampling period."""
    return None if pair is None else int(pair[0])


class Fields:
    """Reads fields of one card, and counts what went wrong by NVML's number of the error."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self._unsupported: set[tuple[Any, ...]] = set()

    def forget(self) -> None:
        """Ask for all again: the driver or the card's mode has changed."""
        self._unsupported.clear()

    def ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a call says; None if it fails or the GPU does not know."""
        try:
            return self.ask_or_fail(call, *arguments)
        except pynvml.NVMLError as error:
            self.errors[str(error.value)] += 1
            return None

    def ask_or_fail(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a call says; None if the GPU does not know. Raises NVMLError."""
        # Without the handle, which is another object each time.
        key = (call.__name__, *(one for one in arguments if isinstance(one, int)))
        if key in self._unsupported:
            return None
        try:
            return call(*arguments)
        except UNSUPPORTED:
            self._unsupported.add(key)
        except pynvml.NVMLError_NotFound:
            pass
        return None

    def of(self, handle: Any) -> dict[str, Any]:
        """Return the fields of a GPU, raw."""
        ask = self.ask
        rates = ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
        return {
            "utilisation_percent": None if rates is None else int(rates.gpu),
            "memory_utilisation_percent": None if rates is None else int(rates.memory),
            "power_mw": ask(pynvml.nvmlDeviceGetPowerUsage, handle),
            "energy_mj": ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle),
            "temperature_c": ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            "clocks_mhz": [ask(pynvml.nvmlDeviceGetClockInfo, handle, kind) for kind in range(CLOCKS)],
            "encoder_percent": first_of(ask(pynvml.nvmlDeviceGetEncoderUtilization, handle)),
            "decoder_percent": first_of(ask(pynvml.nvmlDeviceGetDecoderUtilization, handle)),
            "ecc_errors": [
                ask(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, pynvml.NVML_VOLATILE_ECC)
                for kind in (
                    pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
                    pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                )
            ],
            "throttle": ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        }
