# One A100 80GB (81920 MiB by NVML).
driver_version = 580.159.04
cuda_version = 13000

[gpu]
name = NVIDIA A100-SXM4-80GB (simulated)
memory = 81920 MiB
reserved = 586 MiB
context = 424 MiB
module = 2 MiB
lazy = 0
pool_step = 32 MiB
granule = 2 MiB
kernel = 5 us
event = 500 ns
timeslice = 2 ms
copy_bytes_per_us = 25000
memory_bytes_per_us = 1900000
cc_major = 8
cc_minor = 0
sm_count = 108
speed = 60
