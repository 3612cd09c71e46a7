# A vGPU host with SR-IOV: one A40 for each scheduler policy, and with adaptive round robin on, off and not there.
# The figures are made up; names of types follow NVIDIA's pattern. Time slices are those of 480 and 240 a second.
driver_version = 570.124.03
cuda_version = 12080

[gpu]
name = NVIDIA A40 (simulated)
memory = 46068 MiB
reserved = 600 MiB
cc_major = 8
cc_minor = 6
sm_count = 84
vgpu = sriov
vgpus = 4
vgpu_type = NVIDIA A40-8Q
vgpu_memory = 8 GiB
vgpu_policy = 1
vgpu_arr = 0

[gpu]
name = NVIDIA A40 (simulated)
memory = 46068 MiB
reserved = 600 MiB
cc_major = 8
cc_minor = 6
sm_count = 84
vgpu = sriov
vgpus = 2
vgpu_type = NVIDIA A40-16Q
vgpu_memory = 16 GiB
vgpu_policy = 2
vgpu_arr = 2
vgpu_timeslice = 2083333
vgpu_overruns = 1

[gpu]
name = NVIDIA A40 (simulated)
memory = 46068 MiB
reserved = 600 MiB
cc_major = 8
cc_minor = 6
sm_count = 84
vgpu = sriov
vgpus = 2
vgpu_type = NVIDIA A40-24Q
vgpu_memory = 24 GiB
vgpu_policy = 3
vgpu_arr = 1
vgpu_timeslice = 4166667
