# SPDX-License-Identifier: Apache-2.0
"""The gang that holds for a tenant: whose word it is, and that it leaves the limits alone."""

from __future__ import annotations

import pytest

from hypervisor.errors import Refused
from hypervisor.model import EffectiveQuota, Source, TenantName
from hypervisor.node.quota_changes import QuotaChange, apply_change
from hypervisor.node.quota_policy import QuotaSources
from hypervisor.node.state_store import decoded_tenant
from limiter import quota
from limiter.quota import Quota

A, POD = TenantName("a"), "8f8e6f5c-6b0f-4a57-9d7c-0c7b4f6a2d11"
Word = tuple[str | None, Source | None]


def said(**parts: object) -> Quota:
    return quota.read({f"GPULIMIT_{k.upper()}": str(v) for k, v in parts.items()})


def word(effective: EffectiveQuota) -> Word:
    return effective.quota.gang, effective.gang_source


def test_the_strongest_word_on_a_gang_holds_whoever_says_the_limits() -> None:
    sources = QuotaSources(default=said(memory="1GiB", gang="off"))
    assert word(sources.resolve(A, None, Quota())) == ("off", "default")
    assert word(sources.resolve(A, None, said(gang="env"))) == ("env", "environment")
    sources.config = {A: said(gang="file")}
    assert word(sources.resolve(A, None, said(gang="env"))) == ("file", "config")
    sources.api[A] = said(memory="2GiB", gang="call")
    assert word(sources.resolve(A, None, said(gang="env"))) == ("call", "api")
    sources.pods[A] = said(gang="note")
    effective = sources.resolve(A, POD, Quota())
    assert (word(effective), effective.source) == (("note", "pod"), "api")


def test_a_gang_named_alone_leaves_the_limits_to_what_comes_below() -> None:
    limits = said(memory="1GiB", compute=20)
    for sources in (
        QuotaSources(default=limits, pods={A: said(gang="job")}),
        QuotaSources(default=limits, config={A: said(gang="job")}),
        QuotaSources(config={A: limits}, pods={A: said(gang="job")}),
        QuotaSources(slices={A: limits}, pods={A: said(gang="job")}),
    ):
        effective = sources.resolve(A, POD, Quota()).quota
        assert effective.environ() == {**limits.environ(), "GPULIMIT_GANG": "job"}


def test_an_environment_that_names_a_gang_alone_does_not_escape_the_default() -> None:
    effective = QuotaSources(default=said(memory="1GiB")).resolve(A, None, said(gang="job"))
    assert (word(effective), effective.source) == (("job", "environment"), "default")
    assert effective.quota.environ()["GPULIMIT_MEMORY"] == f"*={1 << 30}B"


@pytest.mark.parametrize(
    ("sources", "pod"),
    [
        (QuotaSources(config={A: said(memory="1GiB")}), None),
        (QuotaSources(api={A: said(memory="1GiB", gang="call")}), None),
        (QuotaSources(admission="fixed", default=said(memory="1GiB")), None),
        (QuotaSources(pods={A: said(memory="1GiB", gang="note")}), POD),
        (QuotaSources(slices={A: said(memory="1GiB")}), POD),
        (QuotaSources(), POD),
    ],
)
def test_an_environment_names_no_gang_where_it_proposes_no_quota_but_can_say_off(
    sources: QuotaSources, pod: str | None
) -> None:
    assert sources.resolve(A, pod, said(gang="env")) == sources.resolve(A, pod, Quota())
    assert word(sources.resolve(A, pod, said(gang="off"))) == ("off", "environment")


def test_what_was_heard_lowers_nothing_any_more() -> None:
    sources = QuotaSources(api={A: said(gang="call")})
    assert word(sources.resolve(A, None, said(gang="off"), proposal_applied=True)) == ("call", "api")


def test_a_call_that_names_a_gang_alone_is_the_whole_quota() -> None:
    effective = QuotaSources(config={A: said(memory="1GiB")}, api={A: said(gang="off")}).resolve(
        A, None, Quota()
    )
    assert (effective.source, effective.quota.environ()) == ("api", {"GPULIMIT_GANG": "off"})


def test_unknown_tenants_stay_turned_away_where_a_gang_alone_is_named() -> None:
    with pytest.raises(Refused, match="tenant a has no quota here"):
        QuotaSources(admission="deny", config={A: said(gang="job")}).resolve(A, None, Quota())


def test_a_change_sets_a_gang_and_takes_it_out_and_keeps_the_rest() -> None:
    base = said(memory="1GiB")
    named = apply_change(base, QuotaChange(said(gang="job")))
    assert named.environ() == {**base.environ(), "GPULIMIT_GANG": "job"}
    assert apply_change(named, QuotaChange(said(compute=30))).gang == "job"
    assert apply_change(named, QuotaChange(Quota(), ["gang"])) == base


def test_who_said_a_gang_is_read_back_and_not_needed_in_older_files() -> None:
    saved = {"uid": 1, "quota": {"GPULIMIT_GANG": "job"}, "source": "default", "proposed": {}, "heard": False}
    saved |= {"pod_uid": None, "pod": "", "suspended": False}
    assert word(decoded_tenant(saved).effective) == ("job", None)
    assert word(decoded_tenant(saved | {"gang_source": "environment"}).effective) == ("job", "environment")
    with pytest.raises(ValueError, match="unknown source 'me'"):
        decoded_tenant(saved | {"gang_source": "me"})
