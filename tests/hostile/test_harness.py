# SPDX-License-Identifier: Apache-2.0
"""What the tests of this folder stand on: programs as other users, in control groups and namespaces."""

from __future__ import annotations

from tests.daemon.conftest import needs_root

pytestmark = needs_root()


def test_a_program_is_another_user_in_its_control_group(
    daemon, attack, control_group, attacker_uid, tenant
) -> None:
    node, group = daemon(), control_group("gpulimit-test/a", owner=attacker_uid)
    one = attack(
        f"""
say(uids=os.getresuid(), groups=os.getgroups(), group=open("/proc/self/cgroup").read())
status, headers, answer = register({tenant!r}, {{"GPULIMIT_COMPUTE": "30"}})
say(status=status, answer=answer)
hear()
""",
        uid=attacker_uid,
        group=group,
    )
    who, answer = one.heard(), one.heard()
    assert (who["uids"], who["groups"]) == ([attacker_uid] * 3, [])
    assert "/gpulimit-test/a\n" in who["group"]
    assert answer["status"] == 200, answer
    assert node.tenant(tenant)["uid"] == attacker_uid
    one.tell(None)
    one.end()


def test_a_program_in_namespaces_of_its_own_is_still_seen(daemon, attack, tenant) -> None:
    node = daemon()
    one = attack(
        f"say(pid=os.getpid(), answer=register({tenant!r})[2]); hear()",
        unshare=("--mount", "--pid", "--fork", "--mount-proc"),
    )
    said = one.heard()
    assert said["pid"] == 1
    assert int(said["answer"]["host_pid"]) > 1
    assert [w["pid"] for w in node.tenant(tenant)["workers"]] == [1]
    one.tell(None)
    one.end()


def test_a_child_gets_the_pid_that_was_asked_for(attack) -> None:
    one = attack(
        """
first = os.fork()
if not first:
    os._exit(0)
os.waitpid(first, 0)
again = fork_as(first)
if not again:
    os._exit(0 if os.getpid() == first else 1)
say(ended=os.waitpid(again, 0)[1])
""",
        uid=None,
    )
    assert one.heard() == {"ended": 0}
    one.end()
