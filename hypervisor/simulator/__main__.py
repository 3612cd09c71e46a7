# SPDX-License-Identifier: Apache-2.0
"""`python -m hypervisor.simulator`; `gpulimit sim` runs this."""

from __future__ import annotations

import sys

from hypervisor.simulator.command import main

sys.exit(main(sys.argv[1:]))
