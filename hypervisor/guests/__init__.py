# SPDX-License-Identifier: Apache-2.0
"""GPU metrics from inside virtual machines: the agent in the guest, and the collector on the host.

`reading` says what of a guest's page is taken over, `target` who a guest is; both are pure. `kubevirt` and
`guest_file` know which guests there are, `collector` asks them.
"""
