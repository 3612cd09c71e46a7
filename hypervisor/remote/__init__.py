# SPDX-License-Identifier: Apache-2.0
"""Other machines' metrics: fetching pages, reading them, and being patient with who does not answer.

Nothing here knows the daemon; whoever wants to read a page uses it. Whatever comes from the other side is
taken for hostile: it is bounded in bytes, time and number before it is looked at.
"""
