# SPDX-License-Identifier: Apache-2.0
"""What makes releases: wheels, the Debian package, man pages, completions, a bill of materials."""
