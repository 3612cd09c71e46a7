# SPDX-License-Identifier: Apache-2.0
"""The daemon's saved state: what is saved comes back, and what is damaged costs itself alone."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, get_args

import pytest

from hypervisor.model import EffectiveQuota, Source, TenantName
from hypervisor.node import state_file
from hypervisor.node.state_store import SavedState, SavedTenant, StateStore, encoded_api, encoded_tenants
from limiter import quota

A, B = TenantName("a"), TenantName("b")


def save(store: StateStore, state: SavedState) -> None:
    """Save, and wait for the thread that writes tenants."""
    store.save(state)
    asyncio.run(store.settled(10))


def said(**parts: object) -> quota.Quota:
    return quota.read({f"GPULIMIT_{k.upper()}": str(v) for k, v in parts.items()})


def tenant(source: Source = "environment", **more: Any) -> SavedTenant:
    return SavedTenant(
        1000, EffectiveQuota(said(memory="4GiB", compute=30), source), said(memory="4GiB"), **more
    )


def reread(folder: Path) -> tuple[SavedState, list[str]]:
    saved, losses = StateStore(str(folder)).load()
    return SavedState(dict(saved.api), dict(saved.tenants)), [loss.text for loss in losses]


def asides(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name not in ("quotas.json", "tenants.json")]


@pytest.mark.parametrize("source", get_args(Source))
def test_a_tenant_comes_back_whoever_said_its_quota(tmp_path: Path, source: Source) -> None:
    saved = SavedState({A: said(memory="3GiB", weight=7)}, {B: tenant(source, is_suspended=True, pod="n/p")})
    save(StateStore(str(tmp_path)), saved)
    assert reread(tmp_path) == (saved, [])


def test_without_files_nothing_is_lost(tmp_path: Path) -> None:
    assert reread(tmp_path / "not there") == (SavedState(), [])


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"source": "moon"}, "unknown source 'moon'"),
        ({"uid": 1e400}, "infinity"),
        ({"uid": None}, "int()"),
        ({"quota": {"GPULIMIT_MEMORY": "4GX"}}, "4GX"),
        ({"quota": {"GPULIMIT_MEMORY": 4}}, "GPULIMIT_MEMORY"),
        ({"quota": {"GPULIMIT_TENANT": "\udcff\ud800"}}, "not text"),
        ({"quota": []}, "no attribute"),
        ({"containers": 7}, "not iterable"),
    ],
)
def test_a_bad_entry_is_lost_alone_and_named(tmp_path: Path, entry: dict[str, Any], word: str) -> None:
    save(StateStore(str(tmp_path)), SavedState({A: said(memory="3GiB")}, {A: tenant(), B: tenant("slices")}))
    path = tmp_path / "tenants.json"
    data = json.loads(path.read_text())
    data["tenants"]["a"] |= entry
    path.write_text(json.dumps(data))
    saved, (loss,) = reread(tmp_path)
    assert saved == SavedState({A: said(memory="3GiB")}, {B: tenant("slices")})
    assert "'a' of 'tenants'" in loss and word in loss
    (aside,) = asides(tmp_path)
    assert aside.name in loss
    save(StateStore(str(tmp_path)), saved)
    assert json.loads(aside.read_text()) == data  # not overwritten


def test_a_bad_name_or_operator_s_quota_is_lost_alone(tmp_path: Path) -> None:
    api = encoded_api({A: said(memory="3GiB"), B: said(memory="2GiB")})
    api["b"]["GPULIMIT_COLOUR"] = "red"
    api["../c"] = {}
    (tmp_path / "quotas.json").write_text(json.dumps({"version": 1, "api": api}))
    saved, losses = reread(tmp_path)
    assert saved.api == {A: said(memory="3GiB")}
    assert len(losses) == 2
    assert "GPULIMIT_COLOUR" in losses[0]
    assert "'../c'" in losses[1]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("null", "null"),
        ("[1]", "[1]"),
        ('{"version": 1, "api"', "not JSON"),
        ("[" * 100_000, "too deeply"),
        ('{"a":' * 100_000, "too deeply"),
        ("9" * 10_000, "not JSON"),
        ('{"version": 2, "api": {}}', "version 2"),
        ('{"version": "x"}', "version 'x'"),
        ("{}", "version None"),
        ("\x00\x01\x02", "not JSON"),
    ],
)
def test_a_damaged_file_is_kept_aside_and_the_other_holds(tmp_path: Path, text: str, word: str) -> None:
    save(StateStore(str(tmp_path)), SavedState({A: said(memory="3GiB")}, {A: tenant()}))
    (tmp_path / "quotas.json").write_text(text)
    saved, (loss,) = reread(tmp_path)
    assert saved == SavedState({A: said(memory="3GiB")}, {A: tenant()})
    assert word in loss
    (aside,) = asides(tmp_path)
    assert aside.name in loss
    assert ("version-2" in aside.name) == (word == "version 2")
    save(StateStore(str(tmp_path)), saved)
    assert aside.read_text() == text


def lay(kind: str, path: Path) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        (path / "inside").mkdir(parents=True)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    else:
        with path.open("wb") as file:
            file.truncate(state_file.MAX_FILE_BYTES + 1)


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "loop", "huge"])
@pytest.mark.parametrize("name", ["quotas.json", "tenants.json"])
def test_what_is_no_file_of_a_daemon_is_moved_away(tmp_path: Path, kind: str, name: str) -> None:
    lay(kind, tmp_path / name)
    store = StateStore(str(tmp_path))
    _, (loss,) = store.load()
    assert name in loss.text
    save(store, SavedState({A: said(memory="3GiB")}, {A: tenant()}))
    assert store.problem == ""
    assert reread(tmp_path) == (SavedState({A: said(memory="3GiB")}, {A: tenant()}), [])
    assert len(asides(tmp_path)) == 1


def test_two_damaged_files_of_one_moment_are_both_kept(tmp_path: Path) -> None:
    for text in ("one", "two", "three"):
        (tmp_path / "tenants.json").write_text(text)
        StateStore(str(tmp_path)).load()
    assert sorted(path.read_text() for path in asides(tmp_path)) == ["one", "three", "two"]


def test_nothing_is_written_over_what_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quotas.json").write_text("precious")
    store = StateStore(str(tmp_path))
    with monkeypatch.context() as refusing:
        refusing.setattr(Path, "rename", refuse)
        _, (loss,) = store.load()
        assert "nothing is saved" in loss.text
        save(store, SavedState({A: said(memory="3GiB")}))
        assert "cannot rename" in store.problem
    assert (tmp_path / "quotas.json").read_text() == "precious"
    save(store, SavedState({A: said(memory="3GiB")}))
    assert store.problem == ""
    assert [path.read_text() for path in asides(tmp_path)] == ["precious"]


def refuse(*_: object, **__: object) -> None:
    raise OSError(30, "Read-only file system")


def test_a_file_of_an_older_version_holds_operators_quotas_too(tmp_path: Path) -> None:
    old = {
        "version": 1,
        "api": encoded_api({A: said(memory="3GiB")}),
        "tenants": encoded_tenants({A: tenant()}),
    }
    (tmp_path / "tenants.json").write_text(json.dumps(old))
    assert reread(tmp_path) == (SavedState({A: said(memory="3GiB")}, {A: tenant()}), [])
    # An older version was there in between: what it wrote is newer.
    save(StateStore(str(tmp_path)), SavedState({A: said(memory="5GiB")}))
    (tmp_path / "tenants.json").write_text(json.dumps(old))
    assert reread(tmp_path)[0].api == {A: said(memory="3GiB")}


def test_operators_quotas_are_on_the_disk_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    store = StateStore(str(tmp_path))
    save(store, SavedState({A: said(memory="3GiB")}))
    assert synced == [str(tmp_path / ".quotas.json.new"), str(tmp_path)]
    save(store, SavedState({A: said(memory="3GiB")}, {A: tenant()}))
    assert len(synced) == 2  # tenants change often, and none survives a power failure


def test_a_save_that_fails_is_told_and_made_good(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.write_text("in the way")
    store = StateStore(str(folder))
    save(store, SavedState({A: said(memory="3GiB")}))
    assert "cannot write" in store.problem
    assert store.failures == 1
    folder.unlink()
    save(store, SavedState({A: said(memory="3GiB")}))
    assert store.problem == ""
    assert reread(folder)[0].api == {A: said(memory="3GiB")}


@pytest.mark.parametrize("kind", ["fifo", "file", "link"])
def test_the_rest_of_a_killed_daemon_is_no_trap(tmp_path: Path, kind: str) -> None:
    rest = tmp_path / ".quotas.json.new"
    victim = tmp_path / "victim"
    victim.write_text("precious")
    if kind == "fifo":
        os.mkfifo(rest)
    elif kind == "file":
        rest.write_text("half")
    else:
        rest.symlink_to(victim)
    store = StateStore(str(tmp_path))
    save(store, SavedState({A: said(memory="3GiB")}))
    assert store.problem == ""
    assert victim.read_text() == "precious"
