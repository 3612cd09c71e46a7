# Two H100 80GB: the first in MIG mode, with a hole where number 3 was; the second whole.  See h100.profile.
# The memory of a MIG device is the card's in proportion to its name; real ones have a few hundred MiB less.
driver_version = 580.159.04
cuda_version = 13000

[gpu]
name = NVIDIA H100 80GB HBM3 (simulated)
memory = 81559 MiB
reserved = 551 MiB
context = 518 MiB
cc_major = 9
cc_minor = 0
sm_count = 132
mig = 1g.10gb,1g.10gb,2g.20gb,-,3g.40gb

[gpu]
name = NVIDIA H100 80GB HBM3 (simulated)
memory = 81559 MiB
reserved = 551 MiB
context = 518 MiB
cc_major = 9
cc_minor = 0
sm_count = 132
