# Three unlike cards whose order by PCI bus (NVML) is not the order by speed (CUDA's default).
driver_version = 580.159.04
cuda_version = 13000

[gpu]
name = NVIDIA L4 (simulated)
uuid = GPU-1f0a11aa-0001-4a00-8000-000000000001
memory = 23034 MiB
reserved = 462 MiB
context = 300 MiB
cc_major = 8
cc_minor = 9
sm_count = 58
speed = 20
pci_bus = 0x03

[gpu]
name = NVIDIA H100 80GB HBM3 (simulated)
uuid = GPU-1f0b22bb-0002-4a00-8000-000000000002
memory = 81559 MiB
reserved = 551 MiB
context = 518 MiB
cc_major = 9
cc_minor = 0
sm_count = 132
speed = 100
pci_bus = 0x1a

[gpu]
name = NVIDIA A100-SXM4-80GB (simulated)
uuid = GPU-2c0c33cc-0003-4a00-8000-000000000003
memory = 81920 MiB
reserved = 586 MiB
context = 424 MiB
cc_major = 8
cc_minor = 0
sm_count = 108
speed = 60
pci_bus = 0x8b
