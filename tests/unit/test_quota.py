# SPDX-License-Identifier: Apache-2.0
"""Quotas: what can be written, what is refused and how, and which variable decides."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limiter import quota
from limiter.errors import QuotaError
from limiter.quota import GangMode, Quota, Rule

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
CARD = 80 * GIB
UUID = "GPU-3430f778-7a25-704c-9090-8b0bb2478114"
OTHER = "GPU-11111111-2222-3333-4444-555555555555"


def refusal(environ: dict[str, str], flags: dict[str, str] | None = None) -> QuotaError:
    """Return the error that an environment must give."""
    with pytest.raises(QuotaError) as caught:
        quota.read(environ, flags=flags)
    return caught.value


# ---- memory amounts ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GiB", 4 * GIB),
        ("4Gi", 4 * GIB),
        ("4G", 4 * GIB),
        ("4g", 4 * GIB),
        ("4gib", 4 * GIB),
        ("4 GiB", 4 * GIB),
        (" 4GiB\n", 4 * GIB),
        ("4GiB,", 4 * GIB),
        ("512m", 512 * MIB),
        ("16384Mi", 16 * GIB),
        ("2048KiB", 2 * MIB),
        ("2T", 2 * TIB),
        ("1PiB", 1024 * TIB),
        ("4GB", 4_000_000_000),
        ("4gb", 4_000_000_000),
        ("500MB", 500_000_000),
        ("1.5GiB", 3 * GIB // 2),
        ("0.1GiB", GIB // 10),
        ("0.333333333333333333333333333333333333GiB", GIB // 3),
        ("1.9999999999999999999999999999999999999999GiB", 2 * GIB - 1),
        ("1048576", MIB),
        ("4294967297", (1 << 32) + 1),
        ("2147483649B", (1 << 31) + 1),
        ("100B", 100),
        ("1KiB", KIB),
        ("18446744073709551615", (1 << 64) - 1),
        ("0004GiB", 4 * GIB),
    ],
)
def test_memory_amount_means_these_bytes(text: str, expected: int) -> None:
    assert quota.parse_memory(text) == (Rule("*", expected),)


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 1, "it is empty"),
        ("  ", 3, "it is empty"),
        ("0", 1, "no memory at all"),
        ("0m", 1, "no memory at all"),
        ("0.0GiB", 1, "no memory at all"),
        ("0.0000000001KiB", 1, "no memory at all"),
        ("-1", 1, "negative"),
        ("-4GiB", 1, "negative"),
        ("+4GiB", 1, "expected a number"),
        ("inf", 1, "expected a number"),
        ("nan", 1, "expected a number"),
        ("GiB", 1, "expected a number"),
        (".5GiB", 1, "expected a number"),
        ("unlimited", 1, "expected a number"),
        ("4.GiB", 3, "digits are missing"),
        ("1e9", 2, "unknown unit"),
        ("0x10G", 2, "unknown unit"),
        ("1_000M", 2, "unknown unit"),
        ("4EiB", 2, "unknown unit"),
        ("4Gib/s", 5, "unexpected text"),
        ("4Gi B", 5, "unexpected text"),
        ("4GiB 5", 6, "unexpected text"),
        ("4GiB;5", 5, "unexpected text"),
        ("4,5GiB", 1, "fewer bytes than 1 MiB"),
        ("16384", 1, "is a unit missing"),
        ("1.5", 2, "has no fraction"),
        ("1.5B", 2, "has no fraction"),
        ("18446744073709551616", 1, "too large"),
        ("16384PiB", 1, "too large"),
        ("99999999999999999999999999999999GiB", 1, "too large"),
        ("4GiB,5GiB", 6, "only one amount"),
        ("4GiB\u00a0", 5, "unexpected text"),
        ("４GiB", 1, "expected a number"),
    ],
)
def test_wrong_memory_amount_is_refused_at_its_place(text: str, position: int, reason: str) -> None:
    error = refusal({"GPULIMIT_MEMORY": text})
    assert (error.variable, error.value, error.position) == ("GPULIMIT_MEMORY", text, position)
    assert reason in error.reason


def test_error_line_names_variable_value_position_and_what_would_be_right() -> None:
    assert str(refusal({"GPULIMIT_MEMORY": "4 Gi_B"})) == (
        'GPULIMIT_MEMORY: "4 Gi_B" at character 3: unknown unit; write 4GiB, 512MiB, 50% or a number of bytes'
    )


def test_error_line_names_the_flag_that_the_value_came_by() -> None:
    error = refusal({"GPULIMIT_MEMORY": "x"}, {"GPULIMIT_MEMORY": "--memory"})
    assert str(error).startswith('--memory: "x" at character 1: ')


def test_error_line_is_short_and_printable_whatever_the_value() -> None:
    text = str(refusal({"GPULIMIT_MEMORY": '\x1b[31m"\\\n' + "é" * 500}))
    assert text.isascii()
    assert text.isprintable()
    assert len(text) < 320
    assert '"\\x1b[31m\\"\\\\\\x0a\\xc3' in text


def test_position_counts_characters_not_bytes() -> None:
    assert refusal({"GPULIMIT_MEMORY": "4GiB, é=1GiB"}).position == 7


def test_zero_byte_is_refused() -> None:
    assert refusal({"GPULIMIT_MEMORY": "4GiB\0"}).position == 5


# ---- shares of the card ----


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [
        ("50%", 50_000),
        ("1%", 1000),
        ("100%", 100_000),
        ("33.3%", 33_300),
        ("12.0005%", 12_000),
        ("50 %", 50_000),
    ],
)
def test_share_of_the_card_keeps_thousandths(text: str, thousandths: int) -> None:
    assert quota.parse_memory(text) == (Rule("*", thousandths, is_share=True),)


@pytest.mark.parametrize("text", ["0%", "0.5%", "100.5%", "101%", "%", "50%%", "50 percent"])
def test_share_outside_1_to_100_is_refused(text: str) -> None:
    refusal({"GPULIMIT_MEMORY": text})


@pytest.mark.parametrize("card", [24 * GIB, 48 * GIB, 80 * GIB, 85_520_809_984])
@pytest.mark.parametrize("percent", [1, 33, 100])
def test_share_is_of_the_card_at_hand_rounded_down_to_a_mib(card: int, percent: int) -> None:
    got = quota.read({"GPULIMIT_MEMORY": f"{percent}%"}).memory_bytes(card)
    exact = card * percent // 100
    assert got == (card if percent == 100 else exact // MIB * MIB)


@given(st.integers(1, 100_000), st.integers(1, 1 << 48))
def test_share_is_never_nothing_and_never_more_than_the_share(thousandths: int, card: int) -> None:
    share = Fraction(max(thousandths, 1000), 100_000)
    got = Quota(memory=(Rule("*", max(thousandths, 1000), is_share=True),)).memory_bytes(card)
    assert got is not None
    assert got >= 1
    assert got == 1 or got <= card * share
    assert got > card * share - MIB


def test_limit_above_the_card_is_cut_to_the_card() -> None:
    for text in ("16GiB", "1PiB", "18446744073709551615"):
        assert quota.read({"GPULIMIT_MEMORY": text}).memory_bytes(15 * GIB) == 15 * GIB


# ---- lists ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0=4GiB", [("0", 4 * GIB)]),
        ("0=4GiB,1=2GiB,*=1GiB", [("0", 4 * GIB), ("1", 2 * GIB), ("*", GIB)]),
        (" 0 = 4GiB ,\t* = 1 GiB , ", [("0", 4 * GIB), ("*", GIB)]),
        (f"{UUID}=2GiB", [(UUID, 2 * GIB)]),
        (f"{UUID.upper()}=2GiB", [(UUID, 2 * GIB)]),
        (f"{UUID.lower()}=2GiB", [(UUID, 2 * GIB)]),
        (f"{UUID[4:]}=2GiB", [(UUID, 2 * GIB)]),
        ("GPU-3430=2GiB", [("GPU-3430", 2 * GIB)]),
        ("3430f778-7a=2GiB", [("GPU-3430f778-7a", 2 * GIB)]),
        ("MIG-3430F778-7a25=2GiB", [("MIG-3430f778-7a25", 2 * GIB)]),
        (f"MIG-{UUID}/7/0=2GiB", [(f"MIG-{UUID}/7/0", 2 * GIB)]),
    ],
)
def test_list_gives_each_device_its_amount(text: str, expected: list[tuple[str, int]]) -> None:
    assert quota.parse_memory(text) == tuple(Rule(*one) for one in expected)


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("0=1GiB,0=2GiB", 8, "named twice"),
        ("0=1GiB,00=2GiB", 8, "named twice"),
        ("*=1GiB,*=2GiB", 8, "named twice"),
        (f"{UUID}=1GiB,{UUID[4:].upper()}=2GiB", 47, "named twice"),
        ("GPU-3430=1GiB,GPU-3430f7=2GiB", 15, "named twice"),
        ("0=1GiB,2GiB", 8, "without a device"),
        (",", 1, "an entry is missing"),
        ("0=1GiB,,1=1GiB", 8, "an entry is missing"),
        ("=1GiB", 1, "not a device"),
        ("0=", 3, "a number is missing"),
        ("0=,1=1GiB", 3, "expected a number"),
        ("gpu0=1GiB", 1, "not a device"),
        ("GPU-343=1GiB", 5, "too short"),
        ("GPU-=1GiB", 5, "too short"),
        ("GPU-3430f77x=1GiB", 12, "not a device"),
        ("GPU-3430f7787=1GiB", 13, "not a device"),
        (f"{UUID}0=1GiB", 41, "not a device"),
        ("-1=1GiB", 1, "not a device"),
        ("0==1GiB", 3, "expected a number"),
        ("all=1GiB", 2, "not a device"),
        (",".join(f"{i}=1GiB" for i in range(33)), 247, "more than 32"),
    ],
)
def test_wrong_list_is_refused_at_its_place(text: str, position: int, reason: str) -> None:
    error = refusal({"GPULIMIT_MEMORY": text})
    assert (error.position, reason in error.reason) == (position, True), error


def test_uuid_wins_over_index_and_index_over_the_star() -> None:
    said = quota.read({"GPULIMIT_MEMORY": "*=1GiB,0=2GiB,GPU-3430=3GiB"})
    assert said.memory_bytes(CARD, index=0, uuid=UUID) == 3 * GIB
    assert said.memory_bytes(CARD, index=0, uuid=OTHER) == 2 * GIB
    assert said.memory_bytes(CARD, index=1, uuid=OTHER) == GIB
    assert said.memory_bytes(CARD) == GIB


def test_card_that_no_rule_names_gets_nothing_while_others_are_named() -> None:
    said = quota.read({"GPULIMIT_MEMORY": "0=2GiB", "GPULIMIT_COMPUTE": "0=20"})
    assert said.memory_bytes(CARD, index=1, uuid=UUID) == 0
    assert said.compute_percent(index=1, uuid=UUID) == 1
    assert said.memory_bytes(CARD) == 0


def test_uuid_of_a_card_known_by_its_bytes_matches_a_mig_rule() -> None:
    assert quota.read({"GPULIMIT_MEMORY": "MIG-3430f778=1GiB"}).memory_bytes(CARD, uuid=UUID) == GIB


def test_rule_for_a_card_is_not_for_its_old_style_mig_parts() -> None:
    said = quota.read({"GPULIMIT_MEMORY": f"{UUID}=8GiB,MIG-{UUID}/7/0=1GiB"})
    assert said.memory_bytes(CARD, uuid=f"MIG-{UUID}/7/0") == GIB
    assert said.memory_bytes(CARD, uuid=f"MIG-{UUID}/8/0") == 0
    assert said.memory_bytes(CARD, uuid=UUID) == 8 * GIB


# ---- compute and the rest ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30", 30), ("30%", 30), ("1", 1), ("100", 100), (" 30 % ", 30), ("0=30,*=5%", 5), ("030", 30)],
)
def test_compute_limit_is_a_whole_percentage(text: str, expected: int) -> None:
    assert quota.read({"GPULIMIT_COMPUTE": text}).compute_percent(index=9) == expected


@pytest.mark.parametrize(
    "text", ["", "0", "0%", "101", "-30", "30.5", "30s", "1e1", "inf", "30,20", "0=30,0=40"]
)
def test_wrong_compute_limit_is_refused(text: str) -> None:
    assert refusal({"GPULIMIT_COMPUTE": text}).variable == "GPULIMIT_COMPUTE"


@pytest.mark.parametrize(
    ("variable", "good", "bad"),
    [
        (
            "GPULIMIT_WEIGHT",
            ["1", "100", "10000"],
            ["", "0", "10001", "-1", "1.5", "100%", "heavy", "99999999999999999999"],
        ),
        ("GPULIMIT_REQUEST", ["1", "30%", "100"], ["", "0", "101", "-1", "1.5", "half"]),
        ("GPULIMIT_PRIORITY", ["high", "normal", "low", "High"], ["", "sprad", " low", "highest", "hi", "0"]),
        ("GPULIMIT_MEMORY_WAIT", ["1", "30", "86400"], ["", "0", "86401", "-1", "1.5", "30s", "10%", "inf"]),
        (
            "GPULIMIT_GANG",
            ["off", "auto", "AUTO", "offline", "job-1_x.y", "a" * 63],
            ["", "none", ".a", "a/b", "a b", " off", "é", "a" * 64, "a\n"],
        ),
        (
            "GPULIMIT_TENANT",
            ["a", "team-1_x.y", "a" * 63],
            ["", ".a", "a/b", "a b", "é", "a" * 64, "..", "a\n"],
        ),
    ],
)
def test_other_variables(variable: str, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert quota.read({variable: text}).is_set
    for text in bad:
        assert refusal({variable: text}).variable == variable


@pytest.mark.parametrize(
    ("text", "gang", "mode"),
    [
        ("off", "off", GangMode.OFF),
        ("OFF", "off", GangMode.OFF),
        ("Auto", "auto", GangMode.AUTO),
        ("Job", "Job", GangMode.NAMED),
        ("offline", "offline", GangMode.NAMED),
    ],
)
def test_a_gang_is_off_auto_or_a_name(text: str, gang: str, mode: GangMode) -> None:
    said = quota.read({"GPULIMIT_GANG": text})
    assert (said.gang, said.gang_mode) == (gang, mode)
    assert not said.has_limits
    assert Quota().gang_mode == GangMode.AUTO


def test_a_gang_called_none_is_refused_since_off_may_be_meant() -> None:
    assert str(refusal({"GPULIMIT_GANG": "none"}, {"GPULIMIT_GANG": "--gang"})) == (
        '--gang: "none" at character 1: write off for no gang; none is no gang\'s name'
    )


def test_request_above_the_compute_limit_is_refused() -> None:
    assert quota.read({"GPULIMIT_COMPUTE": "30", "GPULIMIT_REQUEST": "30"}).request_percent == 30
    error = refusal({"GPULIMIT_COMPUTE": "*=50,0=30", "GPULIMIT_REQUEST": "40"})
    assert "more than the compute limit" in error.reason


def test_nothing_said_is_no_quota() -> None:
    said = quota.read({"PATH": "/bin", "GPULIMIT_LOG": "debug"})
    assert said == Quota()
    assert not said.is_set
    assert said.memory_bytes(CARD) is None
    assert said.compute_percent() == 100


# ---- which variable decides ----


def test_own_variables_win_over_those_of_other_limiters() -> None:
    environ = {
        "CUDA_DEVICE_MEMORY_LIMIT": "1g",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "2g",
        "CUDA_DEVICE_SM_LIMIT": "10",
    }
    said = quota.read(environ)
    assert (said.memory_bytes(CARD, index=0), said.memory_bytes(CARD, index=1)) == (2 * GIB, GIB)
    assert (said.compute_percent(), said.memory_source) == (10, "CUDA_DEVICE_MEMORY_LIMIT")

    environ |= {
        "TENSOR_FUSION_CUDA_MEM_LIMIT": '{"0": 3221225472}',
        "TENSOR_FUSION_CUDA_UP_LIMIT": '{"0": 20}',
    }
    said = quota.read(environ)
    assert (said.memory_bytes(CARD, index=0), said.memory_bytes(CARD, index=1)) == (3 * GIB, 0)
    assert (said.compute_percent(index=0), said.compute_source) == (20, "TENSOR_FUSION_CUDA_UP_LIMIT")

    environ |= {"GPULIMIT_MEMORY": "4GiB", "GPULIMIT_COMPUTE": "30"}
    said = quota.read(environ)
    assert (said.memory_bytes(CARD, index=1), said.memory_source) == (4 * GIB, "GPULIMIT_MEMORY")
    assert (said.compute_percent(index=1), said.compute_source) == (30, "GPULIMIT_COMPUTE")


def test_wrong_variable_is_not_skipped_for_a_lower_one() -> None:
    assert refusal({"GPULIMIT_MEMORY": "", "CUDA_DEVICE_MEMORY_LIMIT": "1g"}).variable == "GPULIMIT_MEMORY"


def test_indexed_variable_alone_leaves_other_cards_nothing() -> None:
    said = quota.read({"CUDA_DEVICE_MEMORY_LIMIT_15": "1g"})
    assert (said.memory_bytes(CARD, index=15), said.memory_bytes(CARD, index=0)) == (GIB, 0)
    assert said.memory_source == "CUDA_DEVICE_MEMORY_LIMIT_15"


@pytest.mark.parametrize("text", ["0", "0m", "", "1gb", "50%", "0=1g", "1g,", "-1", "3000"])
def test_wrong_foreign_memory_limit_is_refused(text: str) -> None:
    assert refusal({"CUDA_DEVICE_MEMORY_LIMIT_3": text}).variable == "CUDA_DEVICE_MEMORY_LIMIT_3"


@pytest.mark.parametrize(
    ("text", "expected"), [("1g", GIB), ("3000M", 3000 * MIB), ("2048k", 2 * MIB), ("1073741824", GIB)]
)
def test_foreign_memory_limit(text: str, expected: int) -> None:
    assert quota.read({"CUDA_DEVICE_MEMORY_LIMIT": text}).memory_bytes(CARD) == expected


def test_foreign_compute_limit_of_100_is_none_and_0_is_refused() -> None:
    assert quota.read({"CUDA_DEVICE_SM_LIMIT": "100"}).compute_percent() == 100
    for text in ("0", "101", "", "30%"):
        refusal({"CUDA_DEVICE_SM_LIMIT": text})


@pytest.mark.parametrize(
    "key",
    [UUID, UUID.upper(), UUID.lower(), UUID[4:], "GPU-3430"],
    ids=["as is", "upper", "lower", "bare", "short"],
)
def test_json_object_by_uuid(key: str) -> None:
    said = quota.read({"TENSOR_FUSION_CUDA_MEM_LIMIT": f' {{ "{key}" : 1073741824 , "1":2147483648 }}\n'})
    assert said.memory_bytes(CARD, index=0, uuid=UUID) == GIB
    assert said.memory_bytes(CARD, index=1, uuid=OTHER) == 2 * GIB


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 1),
        ("5", 1),
        ("\ufeff{}", 1),
        ("[]", 1),
        ("{}", 2),
        ('{"0"}', 5),
        ('{"0":}', 6),
        ('{"0":"1073741824"}', 6),
        ('{"0":null}', 6),
        ('{"0":-1}', 6),
        ('{"0":0}', 6),
        ('{"0":1e9}', 7),
        ('{"0":1073741824.0}', 16),
        ('{"0":1073741824,}', 17),
        ('{"0":1073741824', 16),
        ('{"0":1073741824}{', 17),
        ('{"0":1073741824,"0":1073741824}', 18),
        ("{0:1073741824}", 2),
        ('{"0', 4),
        ('{"":1073741824}', 3),
        ('{"\\u0030":1073741824}', 3),
        ('{"0":{"0":1073741824}}', 6),
        ('{"0":18446744073709551616}', 6),
    ],
)
def test_wrong_json_is_refused_at_its_place(text: str, position: int) -> None:
    error = refusal({"TENSOR_FUSION_CUDA_MEM_LIMIT": text})
    assert (error.variable, error.position) == ("TENSOR_FUSION_CUDA_MEM_LIMIT", position), error


# ---- properties ----

TEXTS = st.one_of(
    st.text(max_size=80),
    st.text(alphabet='0123456789.%=,*-GgiBbKMmTtPp \t{}":xXuUeE', max_size=60),
    st.from_regex(
        re.compile(r"(\*|\d|GPU-[0-9a-f]{4,8})=[0-9]{1,4}(\.[0-9]{1,3})?(GiB|MiB|G|%)?,?"), fullmatch=True
    ),
)
ANY_VARIABLE = st.sampled_from((*quota.VARIABLES, *quota.FOREIGN_VARIABLES))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(ANY_VARIABLE, TEXTS, max_size=4))
def test_any_text_is_a_quota_or_a_quota_error(environ: dict[str, str]) -> None:
    try:
        said = quota.read(environ)
    except QuotaError as error:
        assert error.variable in environ
        assert 1 <= error.position <= len(error.value) + 1
        assert str(error).startswith(error.variable + ": ")
        assert len(str(error)) < 320
        return
    assert said.is_set == bool(environ)
    assert quota.read(said.environ()).environ() == said.environ()


@given(TEXTS)
def test_memory_text_never_means_no_limit(text: str) -> None:
    try:
        said = quota.read({"GPULIMIT_MEMORY": text})
    except QuotaError:
        return
    assert said.memory
    assert all(rule.amount > 0 for rule in said.memory)
    assert said.memory_bytes(CARD, index=3, uuid=UUID) is not None


DEVICES = st.one_of(
    st.just("*"),
    st.integers(0, 999).map(str),
    st.uuids().map(lambda u: f"GPU-{u}"),
    st.uuids().map(lambda u: f"MIG-{u}"),
)
RULES = st.lists(
    st.one_of(
        st.builds(Rule, DEVICES, st.integers(1, (1 << 64) - 1)),
        st.builds(Rule, DEVICES, st.integers(1000, 100_000), st.just(True)),
    ),
    max_size=32,
    unique_by=lambda rule: rule.device,
).map(tuple)


@given(RULES, st.integers(1, 10_000), st.sampled_from(quota.PRIORITIES))
def test_quota_survives_being_written_and_read(
    rules: tuple[Rule, ...], weight: int, priority: quota.Priority
) -> None:
    said = Quota(memory=rules, weight=weight, priority=priority, memory_wait_s=weight)
    again = quota.read(said.environ())
    assert (again.memory, again.weight, again.priority) == (rules, weight, priority)


@given(
    st.integers(0, 10**6),
    st.text("0123456789", min_size=1, max_size=40),
    st.sampled_from(["KiB", "MB", "GiB", "TB"]),
)
def test_decimal_fraction_is_exact_and_rounded_down(whole: int, digits: str, unit: str) -> None:
    size = {"KiB": KIB, "MB": 10**6, "GiB": GIB, "TB": 10**12}[unit]
    exact = int(Fraction(f"{whole}.{digits}") * size)
    text = f"{whole}.{digits}{unit}"
    if exact == 0:
        refusal({"GPULIMIT_MEMORY": text})
    else:
        assert quota.parse_memory(text)[0].amount == exact
