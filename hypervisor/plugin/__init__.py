# SPDX-License-Identifier: Apache-2.0
"""The kubelet's device plugin: offers slices of cards, and hands containers their cards and the library.

`messages` and `pod_messages` are the `wire`, `service` answers the kubelet, `kubelet` registers and follows
its restarts, `grant` is what a container gets, `pod_resources` is who has what by the kubelet's answers and
`allotments` by its record. Needs `pip install
'gpulimit[k8s]'`; imported only when it is switched on.
"""

from __future__ import annotations
