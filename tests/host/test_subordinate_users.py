# SPDX-License-Identifier: Apache-2.0
"""Numbers that one user may take have one account."""

from __future__ import annotations

import os
from pathlib import Path

from hypervisor.host.subordinate_users import CHECK_S, SubordinateUsers

TEXT = """alice:100000:65536
root:200000:65536
1001:300000:10
bob:nonsense:1
:5:5
"""


def test_all_numbers_of_a_users_ranges_have_one_account(tmp_path: Path) -> None:
    path = tmp_path / "subuid"
    path.write_text(TEXT)
    users = SubordinateUsers(path)
    assert {users.name_of(uid) for uid in (100_000, 130_000, 165_535)} == {"subordinate users of alice"}
    assert users.name_of(300_009) == "subordinate users of 1001"
    for uid in (0, 1000, 99_999, 165_536, 300_010, 1 << 32):
        assert users.name_of(uid) == f"user {uid}"


def test_ranges_that_root_gives_to_containers_are_not_one_users(tmp_path: Path) -> None:
    path = tmp_path / "subuid"
    path.write_text(TEXT)
    assert SubordinateUsers(path).name_of(200_000) == "user 200000"


def test_changes_of_the_file_are_followed_and_without_it_there_are_no_ranges(tmp_path: Path) -> None:
    path, now_s = tmp_path / "subuid", [0.0]
    users = SubordinateUsers(path, lambda: now_s[0])
    assert users.name_of(100_000) == "user 100000"
    path.write_text(TEXT)
    now_s[0] += CHECK_S
    assert users.name_of(100_000) == "subordinate users of alice"
    path.write_text("carol:100000:1\n")
    os.utime(path, ns=(1, 1))
    now_s[0] += CHECK_S
    assert users.name_of(100_000) == "subordinate users of carol"
    path.unlink()
    now_s[0] += CHECK_S
    assert users.name_of(100_000) == "user 100000"
