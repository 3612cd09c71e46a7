# A vGPU host of the older kind, without SR-IOV (V100), and a card beside it that is no vGPU host.
driver_version = 535.230.02
cuda_version = 12020

[gpu]
name = Tesla V100-PCIE-16GB (simulated)
memory = 16384 MiB
reserved = 400 MiB
cc_major = 7
cc_minor = 0
sm_count = 80
vgpu = non-sriov
vgpus = 2
vgpu_type = GRID V100-8Q
vgpu_memory = 8 GiB
vgpu_policy = 1
vgpu_accounting = 1

[gpu]
name = NVIDIA L4 (simulated)
memory = 23034 MiB
reserved = 462 MiB
cc_major = 8
cc_minor = 9
sm_count = 58
