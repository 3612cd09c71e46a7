# SPDX-License-Identifier: Apache-2.0
"""`python -m hypervisor`: the daemon; `gpulimit daemon` runs this."""

from __future__ import annotations

import sys

from hypervisor.daemon import main

sys.exit(main(sys.argv[1:]))
