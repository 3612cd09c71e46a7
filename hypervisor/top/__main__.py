# SPDX-License-Identifier: Apache-2.0
"""`python -m hypervisor.top`; `gpulimit top` runs this."""

from __future__ import annotations

import sys

from hypervisor.top.command import main

sys.exit(main(sys.argv[1:]))
