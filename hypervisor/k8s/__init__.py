# SPDX-License-Identifier: Apache-2.0
"""The daemon's neighbours in Kubernetes: the API server, the kubelet. Only these files speak their
protocols; what a pod is and which quota it names is decided in hypervisor/core.
"""
