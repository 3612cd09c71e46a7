# SPDX-License-Identifier: Apache-2.0
"""`gpulimit webhook`: changes pods before the API server stores them. Optional.

Belongs here: TLS, admission reviews. Does not: quotas of running pods (`pods`).
Begin with `server`; `admission` decides and is pure, `certificate` makes the certificate.
"""

from __future__ import annotations
