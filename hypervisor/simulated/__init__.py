# SPDX-License-Identifier: Apache-2.0
"""Nodes that are not there, for trying what watches many: `gpulimit sim node`.

Their figures are made up. What becomes of the figures is the daemon's own code, from tenants' books and
NVML's rows to the page; nothing runs, and no driver, not even the simulated one, is asked, so that twenty
nodes are one small process.
"""
