# SPDX-License-Identifier: Apache-2.0
"""Builds releases: wheels, the Debian package, man pages, completions, a bill of materials."""
