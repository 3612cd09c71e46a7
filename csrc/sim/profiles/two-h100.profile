# Two H100 80GB; see h100.profile.
driver_version = 580.159.04
cuda_version = 13000

[gpu]
count = 2
name = NVIDIA H100 80GB HBM3 (simulated)
memory = 81559 MiB
reserved = 551 MiB
context = 518 MiB
module = 2 MiB
lazy = 0
pool_step = 32 MiB
granule = 2 MiB
kernel = 5 us
event = 500 ns
timeslice = 2 ms
copy_bytes_per_us = 50000
memory_bytes_per_us = 3000000
cc_major = 9
cc_minor = 0
sm_count = 132
speed = 100
