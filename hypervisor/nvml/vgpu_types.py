# SPDX-License-Identifier: Apache-2.0
"""NVML's structures about vGPUs, as in nvml.h."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_uint, c_ulonglong

MAX_LOG_ENTRIES = 200


class Value(ctypes.Union):
    _fields_ = (("real", c_double), ("whole", c_uint), ("long", c_ulonglong))


class Sample(ctypes.Structure):
    _fields_ = (
        ("vgpu", c_uint),
        ("stamp_us", c_ulonglong),
        ("sm", Value),
        ("memory", Value),
        ("encoder", Value),
        ("decoder", Value),
    )


class NewSample(ctypes.Structure):
    _fields_ = (
        ("stamp_us", c_ulonglong),
        ("vgpu", c_uint),
        ("sm", Value),
        ("memory", Value),
        ("encoder", Value),
        ("decoder", Value),
        ("others", Value * 2),
    )


class NewSamples(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("kind", c_uint),
        ("count", c_uint),
        ("since_us", c_ulonglong),
        ("samples", POINTER(NewSample)),
    )


NEW_SAMPLES_VERSION = ctypes.sizeof(NewSamples) | 1 << 24


class State(ctypes.Structure):
    """`words`: with adaptive round robin an average factor and the time slice, else the time slice."""

    _fields_ = (("policy", c_uint), ("arr", c_uint), ("words", c_uint * 2))


class Capabilities(ctypes.Structure):
    _fields_ = (
        ("policies", c_uint * 3),
        ("longest_slice", c_uint),
        ("shortest_slice", c_uint),
        ("arr", c_uint),
        ("others", c_uint * 4),
    )


class LogEntry(ctypes.Structure):
    _fields_ = (
        ("stamp", c_ulonglong),
        ("run_total_ns", c_ulonglong),
        ("run_ns", c_ulonglong),
        ("runlist", c_uint),
        ("target_ns", c_ulonglong),
        ("preempted_ns", c_ulonglong),
    )


class Log(ctypes.Structure):
    _fields_ = (
        ("engine", c_uint),
        ("policy", c_uint),
        ("arr", c_uint),
        ("words", c_uint * 2),
        ("count", c_uint),
        ("entries", LogEntry * MAX_LOG_ENTRIES),
    )


class NewState(ctypes.Structure):
    """Scheduler state of newer drivers, on which adaptive round robin is always on."""

    _fields_ = (("engine", c_uint), ("policy", c_uint), ("average", c_uint), ("slice_ns", c_uint))


class NewLogEntry(ctypes.Structure):
    _fields_ = (*LogEntry._fields_, ("weight", c_uint))


class NewLog(ctypes.Structure):
    _fields_ = (
        ("engine", c_uint),
        ("policy", c_uint),
        ("average", c_uint),
        ("slice_ns", c_uint),
        ("count", c_uint),
        ("entries", NewLogEntry * MAX_LOG_ENTRIES),
    )


class License(ctypes.Structure):
    _fields_ = (
        ("is_licensed", ctypes.c_ubyte),
        ("year", c_uint),
        ("month_to_second", ctypes.c_ushort * 5),
        ("status", ctypes.c_ubyte),
        ("state", c_uint),
    )


class Accounting(ctypes.Structure):
    _fields_ = (
        ("gpu", c_uint),
        ("memory", c_uint),
        ("most_bytes", c_ulonglong),
        ("time_ms", c_ulonglong),
        ("start_us", c_ulonglong),
        ("is_running", c_uint),
        ("reserved", c_uint * 5),
    )
