# SPDX-License-Identifier: Apache-2.0
"""The kubelet's device plugin: offers slices of GPUs, and gives containers their GPU and the library.

Belongs here: the kubelet's gRPC interfaces and its checkpoint file. Does not: pods' quotas (`pods`).
Begin with `plugin`; `service` answers the kubelet, `registration` follows its restarts, `allocation` is what
a container gets, `assignments` which pod holds which device. Needs `pip install 'libgpulimit[k8s]'`; imported
only when it is switched on.
"""

from __future__ import annotations
