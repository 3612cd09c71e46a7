# SPDX-License-Identifier: Apache-2.0
"""Files in /dev/shm against the daemon: whatever other users put there, it starts and serves, and the policy
that it hands out can only be read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from limiter._native import ffi

from tests.daemon.conftest import eventually, needs_root

pytestmark = needs_root()
SHM = Path("/dev/shm")
MS = 1_000_000

TRAPS = """
D, size, own = "/dev/shm/", SETTINGS["layout"]["gl_usage"], SETTINGS["own"]
def symlink(path): os.symlink("/etc/passwd", path)
def dangling(path): os.symlink("/nowhere", path)
def fifo(path): os.mkfifo(path)
def folder(path): os.mkdir(path)
def full_folder(path):
    os.mkdir(path)
    os.mkdir(path + "/inner")
    open(path + "/inner/file", "w")
def hard_link(path):
    with open(D + own, "wb") as file:
        file.write(b"x" * size)
    os.link(D + own, path)
def file(path): open(path, "w")
def whole_file(path): open(path, "wb").write(bytes(size))
def forged(path):
    name = SETTINGS["victim"].encode()
    head = struct.pack("<QIIQII64s", SETTINGS["magic"], SETTINGS["version"], size, 1, 1, 0, name)
    open(path, "wb").write(head.ljust(size, b"\\0"))
    os.chmod(path, 0o666)
def locked(path):
    whole_file(path)
    held = open(path, "r+b")
    fcntl.lockf(held, fcntl.LOCK_EX)
    fcntl.flock(held, fcntl.LOCK_EX)
    kept.append(held)
def sock(path):
    made = socket.socket(socket.AF_UNIX)
    made.bind(path)
    kept.append(made)
kept = []
for name in SETTINGS["names"]:
    globals()[SETTINGS["kind"]](D + name)
say(laid=True)
hear()
"""
KINDS = (
    *("symlink", "dangling", "fifo", "folder", "full_folder", "hard_link", "file", "whole_file"),
    *("forged", "locked", "sock"),
)


def lay(attack: Any, uid: int, kind: str, tenant: str, *names: str) -> Any:
    """Have another user put something under names in /dev/shm, and keep it open."""
    told = {"kind": kind, "names": names, "own": f"gpulimit.x.{tenant}", "victim": tenant}
    one = attack(TRAPS, uid=uid, settings=told | {"magic": 0x55544D4C555047})
    assert one.heard() == {"laid": True}
    return one


def remove_traps(tenant: str) -> None:
    """Remove what a trap has left that is no file."""
    for path in SHM.glob("gpulimit.aside.*"):
        if path.is_dir() and (path / "inner" / "file").exists() and path.stat().st_uid >= 200_000:
            (path / "inner" / "file").unlink()
            (path / "inner").rmdir()
            path.rmdir()
    (SHM / f"gpulimit.x.{tenant}").unlink(missing_ok=True)


def test_what_another_user_puts_where_a_tenants_files_are_to_be_keeps_nobody_out(
    daemon, client, attack, attacker_uid, victim_uid, tenant
) -> None:
    node = daemon()
    for kind in KINDS:
        victim = f"{tenant}-{kind}"
        names = [f"gpulimit.{part}.{victim}" for part in ("u", "p")]
        one = lay(attack, attacker_uid, kind, victim, *(names[:1] if kind == "hard_link" else names))
        assert client(victim, uid=victim_uid).tell(order="look")["devices"], kind
        assert (SHM / names[0]).stat().st_uid == victim_uid
        assert (SHM / names[1]).stat().st_uid == 0
        one.tell(None)
        remove_traps(victim)
    assert node.state()["counts"]["segment_set_aside"] == 2 * len(KINDS) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_another_user_puts_where_the_nodes_files_are_to_be_does_not_keep_the_daemon_from_starting(
    daemon, client, attack, attacker_uid, tenant, kind
) -> None:
    names = [f"gpulimit.{part}.{tenant}" for part in ("s", "lock.s")]
    one = lay(attack, attacker_uid, kind, tenant, *(names[1:] if kind == "hard_link" else names))
    daemon()
    assert client().tell(order="look")["devices"]
    assert [(SHM / name).stat().st_uid for name in names] == [0, 0]
    assert (SHM / names[1]).stat().st_mode & 0o777 == 0o600
    one.tell(None)
    remove_traps(tenant)


@pytest.mark.parametrize("kind", ["full_folder", "whole_file", "symlink"])
def test_names_of_what_was_set_aside_cannot_be_taken_before(
    daemon, client, attack, attacker_uid, victim_uid, tenant, kind
) -> None:
    """Names that could be foreseen, of this version's files and of another's."""
    blocking_tenant = [f"gpulimit.aside.{part}.{tenant}" for part in ("u", "p", "v2.u", "v2.p", "s")]
    two = lay(attack, attacker_uid, kind, tenant, *blocking_tenant)
    one = lay(attack, attacker_uid, "folder", tenant, f"gpulimit.u.{tenant}", f"gpulimit.s.{tenant}")
    daemon()
    assert client(uid=victim_uid).tell(order="look")["devices"]
    for trap in (one, two):
        trap.tell(None)
    for name in blocking_tenant:
        path = SHM / name
        if path.is_dir():
            (path / "inner" / "file").unlink()
            (path / "inner").rmdir()
            path.rmdir()


def test_a_lock_on_what_everybody_can_read_keeps_no_daemon_from_starting(
    daemon, client, attack, attacker_uid, tenant
) -> None:
    node = daemon()
    one = attack(
        """
kept = []
for name in SETTINGS["names"]:
    for lock in (fcntl.flock, fcntl.lockf):
        try:
            kept.append(open("/dev/shm/" + name, "rb"))
            lock(kept[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            say(refused=str(error))
say(done=True)
hear()
""",
        uid=attacker_uid,
        settings={"names": [f"gpulimit.{part}.{tenant}" for part in ("s", "lock.s")]},
    )
    said = []
    while "done" not in (line := one.heard()):
        said.append(line)
    assert len(said) == 2  # the lock's own file is nobody's to open
    node.stop()
    daemon()
    assert client().answer["status"] == 200
    one.tell(None)


def test_two_daemons_of_a_node_are_never_both_up(daemon, tenant) -> None:
    daemon()
    second = daemon(is_awaited=False, socket=f"/tmp/gpulimit-{tenant}.sock", metrics_addr="")
    assert second.process.wait(timeout=10) != 0
    assert "another daemon of this node is running" in second.log.read_text()


SWAP = """
path = "/dev/shm/" + SETTINGS["name"]
ways = (lambda: os.mkfifo(path), lambda: os.symlink("/etc/passwd", path), lambda: os.mkdir(path))
def swap():
    while True:
        for make in ways:
            try: make()
            except OSError: pass
            try: os.rmdir(path)
            except OSError: pass
            try: os.unlink(path)
            except OSError: pass
threading.Thread(target=swap, daemon=True).start()
say(on=True)
hear()
os._exit(0)
"""


def test_a_trap_that_changes_without_pause_keeps_nobody_out(
    daemon, client, attack, attacker_uid, victim_uid, tenant
) -> None:
    daemon()
    for number in range(5):
        name = f"{tenant}-{number}"
        one = attack(SWAP, uid=attacker_uid, settings={"name": f"gpulimit.u.{name}"})
        one.heard()
        assert client(name, uid=victim_uid).tell(order="look")["devices"]
        one.tell(None)
        one.end()


# ---- what is handed out ----

WRITE = """
connection = dial()
connection.sendall(request("POST", "/v1/workers", wish(SETTINGS["tenant"], files=True)))
status, headers, answer, files = read_answer(connection)
policy = files[0]
name = "/dev/shm/" + headers["gpulimit-policy"]
def attempt(what):
    try:
        what()
    except (OSError, ValueError) as error:
        return ""
    return "went"
ways = {
    "open": lambda: os.open(f"/proc/self/fd/{policy}", os.O_RDWR),
    "open by name": lambda: os.open(name, os.O_RDWR),
    "map": lambda: mmap.mmap(policy, 4096),
    "map by name": lambda: mmap.mmap(os.open(name, os.O_RDONLY), 4096),
    "write": lambda: os.write(policy, b"x"),
    "truncate": lambda: os.ftruncate(policy, 0),
    "mode": lambda: os.fchmod(policy, 0o666),
    "mode by name": lambda: os.chmod(name, 0o666),
    "owner": lambda: os.chown(name, os.getuid(), -1),
    "remove": lambda: os.unlink(name),
    "rename": lambda: os.rename(name, name + "x"),
    "replace": lambda: (open(SETTINGS["own"], "w"), os.rename(SETTINGS["own"], name)),
    "link": lambda: os.link(name, SETTINGS["own"] + "y"),
}
say(status=status, went=[way for way, what in ways.items() if attempt(what)])
hear()
"""


def test_a_policy_can_only_be_read(daemon, attack, attacker_uid, tenant) -> None:
    node = daemon()
    settings = {"tenant": tenant, "own": f"/dev/shm/gpulimit.x.{tenant}"}
    one = attack(WRITE, uid=attacker_uid, settings=settings)
    said = one.heard()
    assert said["status"] == 200
    went = set(said["went"])
    if Path("/proc/sys/fs/protected_hardlinks").read_text().strip() == "0":
        went.discard("link")
    assert went == set()
    assert node.tenant(tenant)["workers"]
    one.tell(None)
    (SHM / f"gpulimit.x.{tenant}").unlink(missing_ok=True)


def test_another_users_books_cannot_be_opened(
    daemon, client, attack, attacker_uid, victim_uid, tenant
) -> None:
    daemon()
    assert client(uid=victim_uid).answer["status"] == 200
    one = attack(
        """
for flags in (os.O_RDONLY, os.O_RDWR):
    try:
        os.open("/dev/shm/" + SETTINGS["name"], flags)
        say(opened=True)
    except PermissionError:
        say(opened=False)
say(status=register(SETTINGS["tenant"])[0])
""",
        uid=attacker_uid,
        settings={"name": f"gpulimit.u.{tenant}", "tenant": tenant},
    )
    assert [one.heard() for _ in range(2)] == [{"opened": False}] * 2
    assert one.heard() == {"status": 403}
    one.end()


# ---- a tenant against its own books ----

SCRIBBLE = """
assert register(SETTINGS["tenant"], {"GPULIMIT_MEMORY": "1GiB"})[0] == 200
fd = os.open("/dev/shm/gpulimit.u." + SETTINGS["tenant"], os.O_RDWR)
made, size, libc = random.Random(SETTINGS["seed"]), SETTINGS["layout"]["gl_usage"], ctypes.CDLL(None)
say(ready=True)
def scribble():
    os.pwrite(fd, made.randbytes(4096), made.randrange(128, size - 4096))
def whole():
    os.pwrite(fd, made.randbytes(size - 128), 128)
def ledger():
    for entry in range(16):
        at = SETTINGS["layout"]["gl_usage.device"] + entry * SETTINGS["layout"]["gl_device"]
        os.pwrite(fd, made.randbytes(8), at + 40)
def slots():
    os.pwrite(fd, struct.pack("<I", made.choice([0, 1, 512, 513, 2**32 - 1])), 28)
def punch():
    start = made.randrange(0, size, 4096)
    libc.fallocate(fd, 3, ctypes.c_long(start), ctypes.c_long(made.randrange(1, size - start)))
def cut():
    os.ftruncate(fd, made.choice([0, 1, 4096, size - 1, size + 1, size]))
while True:
    globals()[SETTINGS["way"]]()
    time.sleep(0.0005)
"""


@pytest.mark.parametrize("way", ["scribble", "whole", "ledger", "slots", "punch", "cut"])
def test_a_tenant_that_ruins_its_books_without_pause_harms_nobody_else(
    daemon, client, attack, attacker_uid, victim_uid, tenant, other_tenant, way
) -> None:
    node = daemon()
    good = client(other_tenant, uid=victim_uid, memory="1GiB")
    gpu = node.state()["gpus"][0]
    good.tell(order="device", gpu=gpu["uuid"], card_bytes=gpu["memory_bytes"])
    one = attack(SCRIBBLE, uid=attacker_uid, settings={"tenant": tenant, "seed": 7, "way": way})
    one.heard()
    for _ in range(20):
        beat, spent = good.tell(order="look")["heartbeat_ns"], good.tell(order="look")["spent_ns"]
        good.tell(order="spend", ns=MS, waiting=1)
        eventually(lambda beat=beat: good.tell(order="look")["heartbeat_ns"] > beat, within_s=2)
        device = good.tell(order="look")["devices"][0]
        assert not device["shared"] or device["granted_ns"] >= spent
        assert good.tell(order="reserve", size=1 << 20, limit=1 << 30)["result"] == 0
    assert node.tenant(other_tenant)["gpus"][0]["memory_used_bytes"] == 20 << 20
    one.process.kill()
    one.process.wait()
    eventually(lambda: not (node.tenant(tenant) or {}).get("workers"))
    again = client(other_tenant, uid=victim_uid)
    assert again.answer["status"] == 200


def test_books_that_were_spoiled_are_not_replaced_while_a_process_lives_in_them(
    daemon, client, victim_uid, tenant
) -> None:
    """What it holds is written there alone: with new books the tenant would get its quota twice."""
    node = daemon()
    one = client(uid=victim_uid, memory="1GiB")
    gpu = node.state()["gpus"][0]
    one.tell(order="device", gpu=gpu["uuid"], card_bytes=gpu["memory_bytes"])
    assert one.tell(order="reserve", size=1 << 30, limit=1 << 30)["result"] == 0
    one.tell(order="spoil")
    eventually(lambda: node.tenant(tenant).get("problem"))
    inode = (SHM / f"gpulimit.u.{tenant}").stat().st_ino
    second = client(uid=victim_uid, is_refused=True)
    assert second.answer["status"] == 409
    assert "damaged" in second.answer["error"]
    node.stop()
    node = daemon()
    assert eventually(lambda: node.tenant(tenant))["problem"]
    third = client(uid=victim_uid, is_refused=True)
    assert third.answer["status"] == 409, third.answer
    assert "while processes" in third.answer["error"]
    assert (SHM / f"gpulimit.u.{tenant}").stat().st_ino == inode
    for each in (one, second, third):
        each.kill()
    fresh = client(uid=victim_uid, memory="1GiB")
    assert fresh.tell(order="look")["devices"]
    assert (SHM / f"gpulimit.u.{tenant}").stat().st_ino != inode
    assert (SHM / f"gpulimit.u.{tenant}").stat().st_size == ffi.sizeof("struct gl_usage")
