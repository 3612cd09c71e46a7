# SPDX-License-Identifier: Apache-2.0
"""`python -m limiter` is `gpulimit`."""

from __future__ import annotations

import sys

from limiter.cli import main

sys.exit(main())
