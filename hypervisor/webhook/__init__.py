# SPDX-License-Identifier: Apache-2.0
"""`gpulimit webhook`: changes pods before they are stored. Optional; without it all else works.

`server` answers the API server over TLS, `certificate` makes the certificate and tells the API server whom
to trust. What is changed is decided in hypervisor.core.admission.
"""

from __future__ import annotations
