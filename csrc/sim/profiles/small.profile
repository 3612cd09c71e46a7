# A made-up 4 GiB card on which every byte is told exactly: contexts and code cost nothing, nothing is
# rounded, pools grow by the byte.  For tests that count.
driver_version = 580.159.04
cuda_version = 13000

[gpu]
name = NVIDIA Small 4GB (simulated)
memory = 4 GiB
reserved = 0
context = 0
module = 0
lazy = 0
pool_step = 1
granule = 1
event = 0
sm_count = 16
cc_major = 8
cc_minor = 9
