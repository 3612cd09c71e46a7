# One A100 80GB in seven MIG devices; see a100.profile.  Its activity is not to be had: GPM begins with Hopper.
driver_version = 580.159.04
cuda_version = 13000

[gpu]
name = NVIDIA A100-SXM4-80GB (simulated)
memory = 81920 MiB
reserved = 586 MiB
context = 424 MiB
cc_major = 8
cc_minor = 0
sm_count = 108
mig = 1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb,1g.10gb
