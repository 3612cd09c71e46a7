# SPDX-License-Identifier: Apache-2.0
"""What libgpupath.so makes of the three variables: a table, for both families of names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

# Target, what it is (None: not set), what to append, what to prepend, what it becomes.
Case = tuple[str, bytes | None, bytes | None, bytes | None, bytes | None]
CASES: dict[str, Case] = {
    # appending
    "append": ("PATH", b"/usr/bin:/bin", b"/opt/bin", None, b"/usr/bin:/bin:/opt/bin"),
    "append several in order": ("PATH", b"/bin", b"/b:/a", None, b"/bin:/b:/a"),
    "append where nothing is set": ("PATH", None, b"/opt/bin", None, b"/opt/bin"),
    "append to an empty value": ("PATH", b"", b"/opt/bin", None, b"/opt/bin"),
    "append what is there": ("PATH", b"/a:/b", b"/b", None, b"/a:/b"),
    "append what is there, first": ("PATH", b"/a:/b", b"/a", None, b"/a:/b"),
    "append what is there in part": ("PATH", b"/a:/b", b"/b:/c", None, b"/a:/b:/c"),
    "append all of what is there": ("PATH", b"/a:/b", b"/a:/b", None, b"/a:/b"),
    "append in another order": ("PATH", b"/a:/b", b"/b:/a", None, b"/a:/b"),
    "append a duplicate of itself": ("PATH", b"/a", b"/c:/c:/c", None, b"/a:/c"),
    "append a name that begins like one": ("PATH", b"/opt/bin2", b"/opt/bin", None, b"/opt/bin2:/opt/bin"),
    "append a name that ends like one": ("PATH", b"/x/opt", b"/opt", None, b"/x/opt:/opt"),
    "append with a slash more": ("PATH", b"/a", b"/a/", None, b"/a:/a/"),
    # prepending
    "prepend": ("PATH", b"/usr/bin:/bin", None, b"/opt/bin", b"/opt/bin:/usr/bin:/bin"),
    "prepend several in order": ("PATH", b"/bin", None, b"/b:/a", b"/b:/a:/bin"),
    "prepend where nothing is set": ("PATH", None, None, b"/opt/bin", b"/opt/bin"),
    "prepend to an empty value": ("PATH", b"", None, b"/opt/bin", b"/opt/bin"),
    "prepend what is first": ("PATH", b"/a:/b", None, b"/a", b"/a:/b"),
    "prepend moves what is last": ("PATH", b"/a:/b", None, b"/b", b"/b:/a"),
    "prepend moves what is in the middle": ("PATH", b"/a:/b:/c", None, b"/b", b"/b:/a:/c"),
    "prepend moves every copy": ("PATH", b"/a:/b:/a:/b", None, b"/b", b"/b:/a:/a"),
    "prepend in another order": ("PATH", b"/a:/b:/c", None, b"/b:/a", b"/b:/a:/c"),
    "prepend a duplicate of itself": ("PATH", b"/a", None, b"/c:/c", b"/c:/a"),
    "prepend all that there is": ("PATH", b"/a", None, b"/a", b"/a"),
    # both
    "both": ("PATH", b"/bin", b"/last", b"/first", b"/first:/bin:/last"),
    "both the same: the front wins": ("PATH", b"/bin", b"/x", b"/x", b"/x:/bin"),
    "both the same, appended before": ("PATH", b"/bin:/x", b"/x", b"/x", b"/x:/bin"),
    "both where nothing is set": ("PATH", None, b"/last", b"/first", b"/first:/last"),
    # empty entries: never added, never taken away
    "an empty value adds nothing": ("PATH", b"/a", b"", b"", b"/a"),
    "an empty value sets nothing": ("PATH", None, b"", None, None),
    "only separators set nothing": ("PATH", None, b"::", b":", None),
    "empty entries are not added": ("PATH", b"/a", b":/b::/c:", None, b"/a:/b:/c"),
    "empty entries are not put first": ("PATH", b"/a", None, b":/b:", b"/b:/a"),
    "the current folder stays last": ("PATH", b"/a:", b"/b", None, b"/a::/b"),
    "the current folder stays first": ("PATH", b":/a", None, b"/b", b"/b::/a"),
    "the current folder stays between": ("PATH", b"/a::/b", b"/c", b"/a", b"/a::/b:/c"),
    "a dot is an entry": ("PATH", b"/a", b".", None, b"/a:."),
    "duplicates of others stay": ("PATH", b"/a:/b:/a", b"/c", None, b"/a:/b:/a:/c"),
    # bytes
    "bytes that are not UTF-8 stay": ("PATH", b"/\xff\xfe:/b", b"/c", None, b"/\xff\xfe:/b:/c"),
    "bytes that are not UTF-8 are added": ("PATH", b"/a", b"/\xe9", b"/\x80", b"/\x80:/a:/\xe9"),
    "bytes that are not UTF-8 are the same": ("PATH", b"/a:/\xe9", b"/\xe9", None, b"/a:/\xe9"),
    "spaces are no separators in PATH": ("PATH", b"/a b", b"/c d:/a", None, b"/a b:/c d:/a"),
    "an equals sign": ("PATH", b"/a=1", b"/b=2", None, b"/a=1:/b=2"),
    "a newline": ("PATH", b"/a\n", b"/b\n", None, b"/a\n:/b\n"),
    "long lists": ("PATH", b"/a" * 20000, b"/b" * 20000, None, b"/a" * 20000 + b":" + b"/b" * 20000),
    # LD_LIBRARY_PATH
    "libraries": ("LD_LIBRARY_PATH", b"/usr/lib64:/lib64", b"/cuda", None, b"/usr/lib64:/lib64:/cuda"),
    "libraries where nothing is set": ("LD_LIBRARY_PATH", None, b"/cuda", None, b"/cuda"),
    "libraries first": ("LD_LIBRARY_PATH", b"/lib64", None, b"/cuda", b"/cuda:/lib64"),
    "libraries by semicolon": ("LD_LIBRARY_PATH", b"/a;/b", b"/b;/c", b"/a", b"/a;/b:/c"),
    "libraries with tokens": ("LD_LIBRARY_PATH", b"$ORIGIN/lib", b"$LIB", None, b"$ORIGIN/lib:$LIB"),
    # LD_PRELOAD
    "preload": ("LD_PRELOAD", b"/x/one.so", b"/x/two.so", None, b"/x/one.so:/x/two.so"),
    "preload where nothing is set": ("LD_PRELOAD", None, b"/x/two.so", None, b"/x/two.so"),
    "preload by spaces": ("LD_PRELOAD", b"/x/one.so /x/two.so", b"/x/two.so", None, b"/x/one.so /x/two.so"),
    "preload by both": ("LD_PRELOAD", b"/1.so /2.so:/3.so", b"/4.so", None, b"/1.so /2.so:/3.so:/4.so"),
    "preload values by spaces": ("LD_PRELOAD", b"/1.so", b"/2.so /1.so /3.so", None, b"/1.so:/2.so:/3.so"),
    "preload moves to the front": ("LD_PRELOAD", b"/1.so /2.so /3.so", None, b"/3.so", b"/3.so:/1.so /2.so"),
    "preload moves from the front": ("LD_PRELOAD", b"/1.so /2.so", None, b"/2.so", b"/2.so:/1.so"),
    "preload with a space at the end": ("LD_PRELOAD", b"/1.so ", b"/1.so", None, b"/1.so "),
    "preload of names": ("LD_PRELOAD", b"libm.so.6", b"libm.so.6 libdl.so.2", None, b"libm.so.6:libdl.so.2"),
}
FAMILIES = ("GPULIMIT_", "TF_")


def variables(family: str, case: Case) -> dict[bytes, bytes]:
    """Return the environment that asks for what a case says."""
    target, now, back, front, _ = case
    values = {target: now, f"{family}{target}": back, f"{family}PREPEND_{target}": front}
    return {name.encode(): value for name, value in values.items() if value is not None}


def after(loader: Path, library: Path, env: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the environment that a program sees, started under the library with `env`."""
    # The loader says of what it cannot preload that it ignores it; the values here are no libraries.
    argv = [loader, "--preload", library, "/usr/bin/env", "-0"]
    done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, timeout=20, check=True)
    pairs = (entry.partition(b"=") for entry in done.stdout.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def test_the_table_is_as_long_as_it_should_be() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CASES)
def test_a_list_becomes(loader: Path, library: Path, name: str, family: str) -> None:
    case = CASES[name]
    env = variables(family, case)
    first = after(loader, library, env)
    target = case[0].encode()
    assert first.get(target) == case[4]
    # Nothing else changed, and doing it again changes nothing.
    assert {k: v for k, v in first.items() if k != target} == {k: v for k, v in env.items() if k != target}
    assert after(loader, library, first) == first


def test_both_families_at_once_ours_before(loader: Path, library: Path) -> None:
    env = {
        b"PATH": b"/bin",
        b"TF_PATH": b"/their/last:/both",
        b"GPULIMIT_PATH": b"/our/last:/both",
        b"TF_PREPEND_PATH": b"/their/first",
        b"GPULIMIT_PREPEND_PATH": b"/our/first",
    }
    for _ in range(3):
        env = after(loader, library, env)
        assert env[b"PATH"] == b"/our/first:/their/first:/bin:/our/last:/both:/their/last"


def test_all_three_at_once(loader: Path, library: Path) -> None:
    env = {b"GPULIMIT_PATH": b"/p", b"TF_LD_PRELOAD": b"/l.so", b"GPULIMIT_PREPEND_LD_LIBRARY_PATH": b"/d"}
    seen = after(loader, library, env)
    assert seen == env | {b"PATH": b"/p", b"LD_PRELOAD": b"/l.so", b"LD_LIBRARY_PATH": b"/d"}


def test_a_list_that_no_exec_could_pass_on_stays_as_it_was(loader: Path, library: Path) -> None:
    """Linux takes 128 KiB a string; with a longer PATH no child could be started any more."""
    env = {b"PATH": b"/a" * 60000, b"GPULIMIT_PATH": b"/b" * 60000, b"GPULIMIT_LD_LIBRARY_PATH": b"/c"}
    assert after(loader, library, env) == env | {b"LD_LIBRARY_PATH": b"/c"}
