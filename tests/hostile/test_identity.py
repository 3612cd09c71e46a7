# SPDX-License-Identifier: Apache-2.0
"""Attempts to be taken for another: for the node's operator, another user, a pod, another process.

Each is tried with real processes, users and control groups.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hypervisor.host.control_groups import ControlGroups
from hypervisor.host.unregistered import inspect
from tests.conftest import ROOT, remove_segments
from tests.daemon.conftest import Daemon, eventually, needs_root
from tests.hostile.conftest import Groups, Hostile

pytestmark = needs_root()
DONE, CHANGED, FORBIDDEN, MISSING, REFUSED = 200, 204, 403, 404, 422
OLDER_KERNEL = Path(__file__).with_name("older_kernel")
Start = Callable[..., Daemon]


@pytest.fixture(params=["as it is", "before 6.5"])
def node(daemon: Start, request: pytest.FixtureRequest) -> Daemon:
    """A daemon, on this kernel and on one that hands out no pidfds of connections."""
    if request.param == "as it is":
        return daemon()
    return daemon(env={"PYTHONPATH": f"{OLDER_KERNEL}:{ROOT}"})


@pytest.fixture
def container() -> Iterator[str]:
    name = uuid.uuid4().hex * 2
    yield name
    remove_segments(f"container-{name[:12]}")


@pytest.fixture
def pod_uid() -> Iterator[str]:
    uid = str(uuid.uuid4())
    yield uid
    remove_segments(f"pod-{uid}")


# ---- an operator ----

LEAVES_A_CONNECTION = """
me = os.getpid()
s = dial()
say(alive=ask("POST", SETTINGS["call"], on=s)[0])
read_end, write_end = os.pipe()
opener = os.fork()
if opener == 0:
    s = dial()
    if os.fork() == 0:
        os.close(write_end)
        os.read(read_end, 1)            # until the opener has ended
        say(ended=[ask("POST", SETTINGS["call"], on=s)[0], ask("GET", "/v1/state", on=s)[0]])
    os._exit(0)
os.close(read_end)
if SETTINGS["is_collected"]:
    os.waitpid(opener, 0)
else:
    os.waitid(os.P_PID, opener, os.WEXITED | os.WNOWAIT)
os.close(write_end)
hear()
"""


@pytest.mark.parametrize("is_collected", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_root_of_a_container_is_no_operator_on_a_connection_that_was_left_to_it(
    node: Daemon,
    attack: Hostile,
    control_group: Groups,
    container: str,
    tenant: str,
    client: Any,
    version: int,
    is_collected: bool,
) -> None:
    """Also while the process that opened it is a zombie, which version 1 shows in the root group."""
    client()
    group = control_group(f"docker-{container}.scope", version=version)
    settings = {"call": f"/v1/tenants/{tenant}/suspend", "is_collected": is_collected}
    one = attack(LEAVES_A_CONNECTION, uid=None, group=group, settings=settings)
    assert one.heard() == {"alive": FORBIDDEN}
    assert one.heard() == {"ended": [FORBIDDEN, FORBIDDEN]}
    assert not node.tenant(tenant)["suspended"]
    one.tell(None)


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_whose_first_thread_has_ended_is_still_a_container(
    node: Daemon,
    attack: Hostile,
    control_group: Groups,
    container: str,
    tenant: str,
    client: Any,
    version: int,
) -> None:
    client()
    text = """
import threading, time
s = dial()
def rest():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    say(answer=ask("POST", SETTINGS["call"], on=s)[0], fresh=ask("POST", SETTINGS["call"])[0])
    say(registered=register("mine", {"GPULIMIT_COMPUTE": "1"})[0])
    os._exit(0)
threading.Thread(target=rest).start()
ctypes.CDLL(None).syscall(60, 0)        # exit of this thread alone
"""
    group = control_group(f"docker-{container}.scope", version=version)
    one = attack(text, uid=None, group=group, settings={"call": f"/v1/tenants/{tenant}/suspend"})
    assert one.heard() == {"answer": FORBIDDEN, "fresh": FORBIDDEN}
    assert one.heard() == {"registered": FORBIDDEN}
    assert not node.tenant(tenant)["suspended"]


@pytest.mark.parametrize("where", ["container", "pid namespace", "user namespace"])
def test_root_is_an_operator_on_the_node_alone(
    daemon: Start,
    attack: Hostile,
    control_group: Groups,
    container: str,
    client: Any,
    tenant: str,
    where: str,
) -> None:
    node = daemon()
    client()
    options: dict[str, Any] = {
        "container": {"group": control_group(f"docker-{container}.scope")},
        "pid namespace": {"unshare": ("--pid", "--fork", "--mount-proc")},
        "user namespace": {"unshare": ("--user", "--map-root-user")},
    }
    text = """
say(suspend=ask("POST", SETTINGS["call"])[0], state=ask("GET", "/v1/state")[2]["daemon"]["may_change"])
"""
    settings = {"call": f"/v1/tenants/{tenant}/suspend"}
    one = attack(text, uid=None, settings=settings, **options[where])
    assert one.heard() == {"suspend": FORBIDDEN, "state": False}
    assert not node.tenant(tenant)["suspended"]
    outside = attack(text, uid=None, settings=settings)
    assert outside.heard() == {"suspend": CHANGED, "state": True}


def test_a_user_sees_and_changes_nothing_of_others(
    daemon: Start, attack: Hostile, client: Any, tenant: str, attacker_uid: int, other_tenant: str
) -> None:
    daemon()
    client(memory="1GiB")
    text = f"""
register({other_tenant!r}, {{"GPULIMIT_COMPUTE": "1"}})
state = ask("GET", "/v1/state")[2]
say(tenants=[t["tenant"] for t in state["tenants"]], keys=sorted(state))
calls = [("GET", "quota"), ("PUT", "quota"), ("DELETE", "quota"), ("POST", "suspend"), ("POST", "resume")]
say(calls=[ask(method, "/v1/tenants/{tenant}/" + call, {{}})[0] for method, call in calls])
hear()
"""
    one = attack(text, uid=attacker_uid)
    said = one.heard()
    assert said["tenants"] == [other_tenant]
    assert not {"processes", "events", "counts"} & set(said["keys"])
    assert one.heard() == {"calls": [FORBIDDEN] * 5}
    one.tell(None)


def test_a_user_does_not_see_the_containers_of_his_number(
    daemon: Start, attack: Hostile, control_group: Groups, container: str, attacker_uid: int
) -> None:
    daemon()
    text = 'say(registered=register("", {"GPULIMIT_COMPUTE": "1"})[0]); hear()'
    inside = attack(text, uid=attacker_uid, group=control_group(f"docker-{container}.scope"))
    assert inside.heard() == {"registered": DONE}
    outside = attack('say(tenants=ask("GET", "/v1/state")[2]["tenants"])', uid=attacker_uid)
    assert outside.heard() == {"tenants": []}
    inside.tell(None)


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_an_order_counts_only_if_its_sender_lives_when_it_is_complete(
    node: Daemon, attack: Hostile, tenant: str, method: str
) -> None:
    text = f"""
import time
read_end, write_end = os.pipe()
if os.fork() == 0:
    s = dial()
    whole = request({method!r}, "/v1/tenants/{tenant}/quota", {{"memory": "1GiB"}})
    s.sendall(whole[:-5])
    time.sleep(0.3)                     # the daemon reads the head meanwhile
    if os.fork() == 0:
        os.close(write_end)
        os.read(read_end, 1)
        s.sendall(whole[-5:])
        status = read_answer(s)[0]
        say(status=status, alive=ask({method!r}, "/v1/tenants/{tenant}/quota", {{"memory": "1GiB"}})[0])
    os._exit(0)
os.close(read_end)
os.wait()
os.close(write_end)
"""
    one = attack(text, uid=None)
    assert one.heard() == {"status": FORBIDDEN, "alive": DONE}


# ---- a pod or a container ----

JOINS_BY_NAME = """
group = SETTINGS["delegated"] + SETTINGS["name"]
os.makedirs(group)
open(group + "/cgroup.procs", "w").write("0")
connection = dial()
connection.sendall(request("POST", "/v1/workers", wish(SETTINGS["wish"], files=True)))
status, headers, answer, files = read_answer(connection)
say(status=status, tenant=headers.get("gpulimit-tenant"), uid=os.getuid())
say(seen=[t["tenant"] for t in ask("GET", "/v1/state")[2].get("tenants", [])])
hear()
open(SETTINGS["delegated"] + "/cgroup.procs", "w").write("0")
for folder in os.walk(group, topdown=False):
    os.rmdir(folder[0])
"""
DELEGATED = "gpulimit-test.slice/user.slice/user-{uid}.slice/user@{uid}.service"


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("form", ["pod", "pod and container", "container"])
def test_a_user_who_names_his_own_group_like_a_pod_is_none(
    node: Daemon,
    attack: Hostile,
    control_group: Groups,
    pod_uid: str,
    container: str,
    attacker_uid: int,
    victim_uid: int,
    tenant: str,
    version: int,
    form: str,
) -> None:
    """systemd delegates a group to each user who logs in, and to services that ask for it."""
    register = (
        'status, headers, _ = register(); say(status=status, tenant=headers["gpulimit-tenant"]); hear()'
    )
    name = {"pod": f"/pod{pod_uid}", "container": f"/docker-{container}.scope"}.get(
        form, f"/kubepods/pod{pod_uid}/{container}"
    )
    expected = f"container-{container[:12]}" if form == "container" else f"pod-{pod_uid}"
    place = control_group(f"gpulimit-test.slice{name}", version=version)
    victim = attack(register, uid=victim_uid, group=place)
    assert victim.heard() == {"status": DONE, "tenant": expected}
    home = control_group(DELEGATED.format(uid=attacker_uid), owner=attacker_uid, version=version)
    settings = {"delegated": str(home), "name": name, "wish": tenant}
    one = attack(JOINS_BY_NAME, uid=attacker_uid, group=home, settings=settings)
    assert one.heard() == {"status": DONE, "tenant": tenant, "uid": attacker_uid}
    assert one.heard() == {"seen": [tenant]}
    assert len(node.tenant(expected)["workers"]) == 1
    one.tell(None)
    victim.tell(None)
    one.end()


def test_a_container_in_a_user_namespace_is_one_although_its_group_is_its_own(
    daemon: Start, attack: Hostile, control_group: Groups, pod_uid: str, container: str, attacker_uid: int
) -> None:
    """Runtimes give it its own group; what it makes in there is no other container."""
    node = daemon()
    home = control_group(f"gpulimit-test/docker-{container}.scope", owner=attacker_uid)
    settings = {"delegated": str(home), "name": f"/pod{pod_uid}", "wish": ""}
    one = attack(JOINS_BY_NAME, uid=attacker_uid, group=home, settings=settings)
    expected = f"container-{container[:12]}"
    assert one.heard() == {"status": DONE, "tenant": expected, "uid": attacker_uid}
    assert one.heard() == {"seen": [expected]}
    assert node.tenant(f"pod-{pod_uid}") is None
    one.tell(None)
    one.end()


def test_a_process_under_no_quota_is_not_counted_as_the_pods_that_it_names(
    attack: Hostile, control_group: Groups, pod_uid: str, attacker_uid: int
) -> None:
    """It would else show the pod as one whose quota is off."""
    home = control_group(DELEGATED.format(uid=attacker_uid), owner=attacker_uid)
    text = f"""
group = {str(home)!r} + "/pod{pod_uid}"
os.makedirs(group)
open(group + "/cgroup.procs", "w").write("0")
say(pid=os.getpid())
hear()
"""
    one = attack(text, uid=attacker_uid, group=home)
    found = inspect(one.heard()["pid"], ControlGroups())
    assert found is not None
    assert (found.uid, found.pod_uid, found.container_id) == (attacker_uid, None, None)
    one.tell(None)


@pytest.mark.parametrize("wish", ["pod-x", "container-x", "auto-0-0123456789abcdef"])
def test_names_that_the_node_gives_cannot_be_taken(
    daemon: Start, attack: Hostile, attacker_uid: int, wish: str
) -> None:
    """A user could else take the name first that another's processes are going to need."""
    node = daemon()
    one = attack(f"say(status=register({wish!r})[0])", uid=attacker_uid)
    assert one.heard()["status"] in (FORBIDDEN, REFUSED)
    assert node.state()["tenants"] == []


# ---- another process, another user ----


def test_another_users_tenant_cannot_be_joined(
    daemon: Start, attack: Hostile, client: Any, tenant: str, attacker_uid: int
) -> None:
    daemon()
    client(memory="1GiB")
    text = f"""
for method in (register, lambda *a, **k: register(*a, pid=1, **k)):
    status, headers, answer = method({tenant!r}, {{"GPULIMIT_COMPUTE": "1"}})
    say(status=status, error=answer["error"])
"""
    one = attack(text, uid=attacker_uid)
    expected = f"tenant {tenant} belongs to another user, 0; take another name"
    for _ in range(2):
        assert one.heard() == {"status": FORBIDDEN, "error": expected}


PID_AGAIN = """
told, tell = os.pipe()
opener = os.fork()
if opener == 0:
    become(SETTINGS["attacker"])
    s = dial()
    if os.fork() == 0:
        os.close(tell)
        worker = os.read(told, 100).decode()
        answers = [
            ask("GET", "/v1/state", on=s)[0],
            ask("GET", f"/v1/workers/{worker}/commands?after=0&wait=0", on=s)[0],
            ask("POST", f"/v1/workers/{worker}/results", {"number": 1, "ok": False, "message": "x"}, on=s)[0],
            ask("POST", "/v1/workers", wish(SETTINGS["tenant"]), on=s)[0],
            ask("POST", f"/v1/tenants/{SETTINGS['tenant']}/suspend", on=s)[0],
        ]
        say(answers=answers)
    os._exit(0)
os.waitpid(opener, 0)
victim = fork_as(opener)
if victim == 0:
    os.close(told)
    become(SETTINGS["victim"])
    status, headers, _ = register(SETTINGS["tenant"], {"GPULIMIT_COMPUTE": "5"})
    say(status=status, pid_is_the_same=os.getpid() == opener)
    os.write(tell, headers["gpulimit-worker"].encode())
    os.close(tell)
    hear()
    os._exit(0)
os.waitpid(victim, 0)
"""


@pytest.mark.parametrize("is_victim_root", [False, True])
def test_an_old_connection_does_not_speak_for_the_next_process_of_its_pid(
    node: Daemon, attack: Hostile, attacker_uid: int, victim_uid: int, tenant: str, is_victim_root: bool
) -> None:
    victim = 0 if is_victim_root else victim_uid
    settings = {"attacker": attacker_uid, "victim": victim, "tenant": tenant}
    one = attack(PID_AGAIN, uid=None, settings=settings)
    assert one.heard() == {"status": DONE, "pid_is_the_same": True}
    assert one.heard() == {"answers": [FORBIDDEN] * 5}
    shown = node.tenant(tenant)
    assert (shown["uid"], len(shown["workers"]), shown["suspended"]) == (victim, 1, False)
    assert not [event for event in node.state()["events"] if event["kind"].startswith("command")]
    one.tell(None)


def test_a_worker_is_the_process_that_registered_and_no_child_of_it(
    node: Daemon, attack: Hostile, attacker_uid: int, tenant: str
) -> None:
    text = f"""
status, headers, _ = register({tenant!r}, {{"GPULIMIT_COMPUTE": "5"}})
worker = headers["gpulimit-worker"]
target = f"/v1/workers/{{worker}}/commands?after=0&wait=0"
say(own=ask("GET", target)[0])
if os.fork() == 0:
    say(child=ask("GET", target)[0])
    os._exit(0)
hear()
"""
    one = attack(text, uid=attacker_uid)
    assert one.heard() == {"own": CHANGED}
    assert one.heard() == {"child": FORBIDDEN}
    one.tell(None)


def test_a_process_that_becomes_another_user_leaves_its_tenant(
    daemon: Start, attack: Hostile, attacker_uid: int, tenant: str
) -> None:
    """A launcher that registers as root, and then becomes a user, hands nothing of root's to what he runs."""
    node = daemon()
    text = f"""
first = register({tenant!r}, {{"GPULIMIT_COMPUTE": "5"}})
become({attacker_uid})
same = register({tenant!r}, {{"GPULIMIT_COMPUTE": "5"}})
other = register("", {{"GPULIMIT_COMPUTE": "5"}})
say(statuses=[first[0], same[0], other[0]], tenant=other[1]["gpulimit-tenant"])
hear()
"""
    one = attack(text, uid=None)
    said = one.heard()
    assert said["statuses"] == [DONE, FORBIDDEN, DONE]
    assert said["tenant"].startswith(f"auto-{attacker_uid}-")
    assert node.tenant(tenant)["workers"] == []
    assert len(node.tenant(said["tenant"])["workers"]) == 1
    one.tell(None)
    eventually(lambda: not node.tenant(said["tenant"])["workers"])


def test_a_setuid_program_is_not_spoken_for_by_a_connection_that_it_was_left(
    node: Daemon, attack: Hostile, setuid: Path, attacker_uid: int, tenant: str
) -> None:
    """The connection stays the user's who opened it, although its process is root's now."""
    text = f"""
s = dial()
os.set_inheritable(s.fileno(), True)
s2 = dial()
if os.fork() == 0:
    parent = os.getppid()
    import time
    while os.stat(f"/proc/{{parent}}").st_uid:
        time.sleep(0.01)
    status, headers, answer = register({tenant!r}, {{"GPULIMIT_COMPUTE": "5"}}, on=s)
    suspend = ask("POST", "/v1/tenants/{tenant}/suspend", on=s2)[0]
    say(status=status, suspend=suspend, error=answer.get("error", ""))
    os._exit(0)
os.execv({str(setuid)!r}, ["setuid", "as root"])
"""
    one = attack(text, uid=attacker_uid)
    said = one.heard()
    assert said["suspend"] == FORBIDDEN
    shown = node.tenant(tenant)
    assert shown is None or shown["uid"] == attacker_uid


def test_callers_who_are_refused_leave_nothing_open(
    node: Daemon, attack: Hostile, attacker_uid: int, tenant: str
) -> None:
    files = Path(f"/proc/{node.process.pid}/fd")
    text = f"""
import time
for number in range(60):
    opener = os.fork()
    if opener == 0:
        s = dial()
        if os.fork() == 0:
            time.sleep(0.05)
            ask("GET", "/v1/state", on=s)
            register({tenant!r}, on=s)
            register("pod-x")
        os._exit(0)
    os.waitpid(opener, 0)
say(done=True)
hear()
"""
    node.ask("GET", "/v1/state")
    before = len(list(files.iterdir()))
    one = attack(text, uid=attacker_uid)
    one.heard()
    eventually(lambda: len(list(files.iterdir())) <= before)
    one.tell(None)


def test_what_a_process_says_of_its_pid_is_not_shown(
    daemon: Start, attack: Hostile, attacker_uid: int, tenant: str
) -> None:
    node = daemon()
    text = f"say(pid=os.getpid(), status=register({tenant!r}, pid=1)[0]); hear()"
    one = attack(text, uid=attacker_uid)
    pid = one.heard()["pid"]
    worker = node.tenant(tenant)["workers"][0]
    assert (worker["pid"], worker["host_pid"]) == (pid, pid)
    one.tell(None)


# ---- results, names ----


def test_a_result_whose_worker_ends_before_its_body_is_refused(
    node: Daemon, attack: Hostile, attacker_uid: int, tenant: str
) -> None:
    text = f"""
import time
read_end, write_end = os.pipe()
if os.fork() == 0:
    status, headers, _ = register({tenant!r}, {{"GPULIMIT_COMPUTE": "1"}})
    s = dial()
    target = f"/v1/workers/{{headers['gpulimit-worker']}}/results"
    whole = request("POST", target, {{"number": 1, "ok": True, "message": "x"}})
    s.sendall(whole[:-5])
    time.sleep(0.3)                     # the daemon reads the head meanwhile
    if os.fork() == 0:
        os.close(write_end)
        os.read(read_end, 1)
        s.sendall(whole[-5:])
        status, _, answer, _ = read_answer(s)
        say(status=status, error=answer["error"])
    os._exit(0)
os.close(read_end)
os.wait()
os.close(write_end)
"""
    one = attack(text, uid=attacker_uid)
    said = one.heard()
    assert said["status"] in (FORBIDDEN, MISSING)
    assert said["error"]
    assert node.state()["gpus"]


def test_what_a_process_says_of_its_pod_is_not_shown(
    daemon: Start, attack: Hostile, attacker_uid: int, tenant: str
) -> None:
    node = daemon()
    text = f"""
say(status=register({tenant!r}, {{"GPULIMIT_COMPUTE": "1"}}, pod_namespace="kube-system",
                    pod_name="victim\\x1b[31m\\"}}", name="\\x1b[31mred\\n")[0])
hear()
"""
    one = attack(text, uid=attacker_uid)
    assert one.heard() == {"status": DONE}
    shown = node.tenant(tenant)
    assert shown["pod"] == ""
    assert shown["workers"][0]["name"].isprintable()
    one.tell(None)
    assert "\x1b" not in node.stop()


# ---- what the handed policy allows ----


@pytest.mark.parametrize("is_contained", [False, True])
def test_a_policy_cannot_be_opened_for_writing_by_its_descriptor(
    daemon: Start,
    attack: Hostile,
    control_group: Groups,
    container: str,
    attacker_uid: int,
    is_contained: bool,
) -> None:
    """By root in a container neither: it is handed over through a read-only mount."""
    node = daemon()
    if "no read-only mount" in node.log.read_text():
        pytest.skip("no read-only mount can be made here")
    text = """
import fcntl, mmap
connection = dial()
connection.sendall(request("POST", "/v1/workers", wish("", {"GPULIMIT_COMPUTE": "1"}, files=True)))
status, headers, answer, files = read_answer(connection)
policy, usage, state = files
def tried(what):
    try:
        what()
        return "done"
    except (OSError, ValueError) as error:
        return "refused"
def attempts(file):
    name = f"/proc/self/fd/{file}"
    return [
        tried(lambda: os.open(name, os.O_RDWR)),
        tried(lambda: mmap.mmap(file, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)),
        tried(lambda: os.ftruncate(file, 0)),
        tried(lambda: os.truncate(name, 0)),
        tried(lambda: os.fchmod(file, 0o666)),
        tried(lambda: os.fchown(file, os.getuid(), -1)),
        tried(lambda: os.pwrite(file, b"x", 0)),
        tried(lambda: os.link(name, "/dev/shm/gpulimit.stolen", follow_symlinks=True)),
    ]
say(status=status, files=len(files), tried=attempts(policy) + attempts(state))
hear()
"""
    options: dict[str, Any] = {"uid": attacker_uid}
    if is_contained:
        group = control_group(f"docker-{container}.scope")
        options = {"uid": None, "group": group, "unshare": ("--mount", "--pid", "--fork", "--mount-proc")}
    one = attack(text, **options)
    assert one.heard() == {"status": DONE, "files": 3, "tried": ["refused"] * 16}
    one.tell(None)
