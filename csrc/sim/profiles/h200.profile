# One H200 141GB (143771 MiB by NVML); context, pool step and granule measured with driver 580.159.
driver_version = 580.159.04
cuda_version = 13000

[gpu]
name = NVIDIA H200 (simulated)
memory = 143771 MiB
reserved = 611 MiB
context = 518 MiB
module = 2 MiB
lazy = 0
pool_step = 32 MiB
granule = 2 MiB
kernel = 5 us
event = 500 ns
timeslice = 2 ms
copy_bytes_per_us = 50000
memory_bytes_per_us = 4400000
cc_major = 9
cc_minor = 0
sm_count = 132
speed = 110
