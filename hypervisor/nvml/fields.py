# SPDX-License-Identifier: Apache-2.0
"""Reads the optional fields of one GPU for the probe.

Each field is read separately: a field that fails is missing, and the others are unaffected. A field that the
card does not support is requested once.
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
"""Answers that stay the same until the driver, or the card's mode, changes."""
CLOCKS = 4


def first_of(pair: Any) -> int | None:
    """Return the utilisation from a pair of utilisation and sampling period."""
    return None if pair is None else int(pair[0])


class Fields:
    """Reads fields of one card, and counts errors by NVML's error number."""

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self._unsupported: set[tuple[Any, ...]] = set()

    def forget(self) -> None:
        """Forget lasting answers: the driver or the card's mode has changed."""
        self._unsupported.clear()

    def ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return a call's result; None if it fails or is not supported."""
        try:
            return self.ask_or_fail(call, *arguments)
        except pynvml.NVMLError as error:
            self.errors[str(error.value)] += 1
            return None

    def ask_or_fail(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return a call's result; None if it is not supported. Raises NVMLError."""
        # The key lacks the handle, which is a new object each time.
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
