# SPDX-License-Identifier: Apache-2.0
"""Reading pages: everything that the formats allow, and nothing else."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as client_openmetrics
from prometheus_client.parser import text_string_to_metric_families as client_text

from hypervisor.exporter.exposition import Form, render
from hypervisor.exporter.families import families_of
from hypervisor.scraper.limits import LIMITS, Limits
from hypervisor.scraper.parser import Page, Parser, clean, parse
from tests.metrics import full


def read(text: str | bytes, **limits: int) -> Page:
    data = text if isinstance(text, bytes) else text.encode()
    return parse(data, Limits(**limits) if limits else LIMITS)


def one(line: str) -> tuple[dict[str, str], float]:
    page = read(line)
    assert page.count == 1 and not page.dropped, (line, page)
    return next(page.of(next(iter(page.samples))))


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("m 1", {}, 1),
        ("m 1\n", {}, 1),
        ("m 1\r\n", {}, 1),
        ("\t m \t 1 \t", {}, 1),
        ("m{} 1", {}, 1),
        ("m{ } 1", {}, 1),
        ("m {a=\"b\"} 1", {"a": "b"}, 1),
        ("m{a=\"b\"}1", {"a": "b"}, 1),
        ("m{a=\"b\",} 1", {"a": "b"}, 1),
        ("m{ a = \"b\" , c = \"d\" } 1", {"a": "b", "c": "d"}, 1),
        ("m{c=\"d\",a=\"b\"} 1", {"a": "b", "c": "d"}, 1),
        ("m{a=\"}\"} 1", {"a": "}"}, 1),
        ("m{a=\"} 5\"} 1", {"a": "} 5"}, 1),
        ("m{a=\",b=\"} 1", {"a": ",b="}, 1),
        ("m{a=\"x\\\",host=\\\"evil\"} 1", {"a": "x\",host=\"evil"}, 1),
        (r'm{a="C:\\dir\\"} 1', {"a": "C:\\dir\\"}, 1),
        (r'm{a="one\ntwo"} 1', {"a": "onetwo"}, 1),
        (r'm{a="\q"} 1', {"a": r"\q"}, 1),
        ("m{a=\"\"} 1", {}, 1),
        ("m{a=\"été\"} 1", {"a": "été"}, 1),
        ("a:b_c{} 1", {}, 1),
        ("m 1.5e3", {}, 1500),
        ("m 1E-3", {}, 0.001),
        ("m .5", {}, 0.5),
        ("m 5.", {}, 5),
        ("m -0.25", {}, -0.25),
        ("m +7", {}, 7),
        ("m +Inf", {}, math.inf),
        ("m Inf", {}, math.inf),
        ("m -Inf", {}, -math.inf),
        ("m 1 1700000000000", {}, 1),
        ("m 1 -5", {}, 1),
        ("m 1 1700000000.125", {}, 1),
        ("m_total 1 # {trace_id=\"x}y\"} 0.5", {}, 1),
        ("m_bucket{le=\"1\"} 3 1.5 # {a=\"b\"} 0.5 1.0", {"le": "1"}, 3),
        ("m{a=\"b\"} 1 # {c=\"d\"} 2", {"a": "b"}, 1),
    ],
)  # fmt: skip
def test_a_sample(line, labels, value) -> None:
    assert one(line) == (labels, value)


def test_nan() -> None:
    assert math.isnan(one("m NaN")[1]) and math.isnan(one("m nan")[1])


@pytest.mark.parametrize(
    "line",
    [
        "m",
        "m ",
        "m x",
        "m{ 1",
        "m{a} 1",
        "m{a=b} 1",
        "m{a=\"b} 1",
        "m{a=\"b\\\"} 1",
        "m{a=\"b\"",
        "m{a=\"b\"} ",
        "m{,} 1",
        "m{a=\"b\",,c=\"d\"} 1",
        "m{a=\"b\" c=\"d\"} 1",
        "m{a=\"b\",a=\"c\"} 1",
        "m{__name__=\"other\"} 1",
        "m{a-b=\"c\"} 1",
        "m{é=\"c\"} 1",
        "1m 1",
        "m-x 1",
        "mé 1",
        "{a=\"b\"} 1",
        "m 1_000",
        "m ١",
        "m infinity",
        "m 0x10",
        "m 1e999",
        "m -1e999",
        "m 1 2 3",
        "m 1 now",
        "m 1,5",
        "m 1\x0b",
        "m{a=\"b\"} 1e",
        "m{a=\"b\"} 1_0",
        "<html><body>404</body></html>",
    ],
)  # fmt: skip
def test_a_line_that_is_no_sample_is_dropped_and_counted(line) -> None:
    page = read(f'before 1\nm{{a="known"}} 2\n{line}\nafter 3\n')
    assert page.dropped == {"malformed": 1}
    assert page.samples == {"before": {(): 1}, "m": {(("a", "known"),): 2}, "after": {(): 3}}


def test_comments_say_what_families_are() -> None:
    page = read(
        "# HELP m Some \\\\ help\\nof two lines\n# TYPE m gauge\n#TYPE n gauge\n# TYPE o nonsense\n"
        "# hello\n#\n# TYPE h histogram\n# UNIT h seconds\nm 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n"
        "# TYPE m counter\n"
    )  # fmt: skip
    assert page.kinds == {"m": "gauge", "h": "histogram"}
    assert page.helps == {"m": "Some \\ help of two lines"}
    assert [page.kind_of(name) for name in page.samples] == ["gauge", *3 * ["histogram"]]
    assert page.kind_of("other") == "untyped" and not page.dropped


def test_openmetrics_ends_at_its_end() -> None:
    assert list(read("# TYPE c counter\nc_total 1\n# EOF\nforged 1\n").samples) == ["c_total"]


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\u2029", "\r"])
def test_only_a_line_feed_ends_a_line(separator) -> None:
    page = read(f'm{{a="x{separator}forged 1"}} 2\n')
    assert page.samples == {"m": {(("a", "xforged 1"),): 2}}
    assert page.repaired == {"cleaned": 1}


@pytest.mark.parametrize(
    "hidden",
    [
        "\x1b[31m",
        "\x1b]0;title\x07",
        "\x9b2J",
        "\u202e",
        "\u2066",
        "\u200b",
        "\ufeff",
        "\x00",
        "\x7f",
        "\u200d",
    ],
)
def test_what_would_steer_a_terminal_is_removed(hidden) -> None:
    ((labels, _),) = read(f'm{{a="x{hidden}y"}} 2\n').of("m")
    assert labels["a"].isprintable() and labels["a"].startswith("x") and labels["a"].endswith("y")
    assert not read(f"# HELP m x{hidden}y\n").helps["m"].startswith("x" + hidden)


def test_broken_utf8_is_marked() -> None:
    ((labels, _),) = read(b'm{a="x\xff\xfey"} 2\n').of("m")
    assert labels == {"a": "x��y"}


def test_of_two_samples_of_a_series_the_last_holds() -> None:
    page = read('m{a="b",c="d"} 1\nm{c="d",a="b",e=""} 2\nm{a="b\x1b",c="d"} 3\n')
    assert page.samples == {"m": {(("a", "b"), ("c", "d")): 3}}
    assert page.dropped == {"duplicate": 2}


# Limits


def test_too_many_series_keep_out_what_is_new_only() -> None:
    text = "".join(f'm{{a="{n}"}} {n}\n' for n in range(10))
    first = read(text + 'm{a="0"} 100\n', series=4)
    assert {labels["a"]: value for labels, value in first.of("m")} == {"0": 100, "1": 1, "2": 2, "3": 3}
    assert first.dropped == {"too_many_series": 6, "duplicate": 1}
    backwards = "".join(f'm{{a="{n}"}} {n + 50}\n' for n in reversed(range(10))).encode()
    later = parse(backwards, Limits(series=4), before=first)
    assert {labels["a"]: value for labels, value in later.of("m")} == {"0": 50, "1": 51, "2": 52, "3": 53}


def test_room_of_series_that_have_gone_is_given_to_others() -> None:
    limits = Limits(series=2)
    pages = [parse(text.encode(), limits) for text in ("a 1\nb 1\nc 1\n",)]
    for text in ("c 1\nb 1\n", "c 1\nb 1\n"):
        pages.append(parse(text.encode(), limits, before=pages[-1]))
    assert [sorted(page.samples) for page in pages] == [["a", "b"], ["b"], ["b", "c"]]


def test_too_many_names() -> None:
    page = read("a 1\nb 1\nc 1\na{x=\"y\"} 1\n", names=2)  # fmt: skip
    assert list(page.samples) == ["a", "b"] and page.count == 3
    assert page.dropped == {"too_many_names": 1}


def test_too_many_labels_and_too_long_names() -> None:
    many = ",".join(f'l{n}="v"' for n in range(5))
    page = read(
        f'm{{{many}}} 1\nm{{{"x" * 11}="y"}} 1\n{"m" * 11} 1\n{"m" * 10} 1\n', labels=4, name_bytes=10
    )
    assert page.dropped == {"too_many_labels": 1, "name_too_long": 2}
    assert list(page.samples) == ["m" * 10]


@pytest.mark.parametrize(
    "value", ["x" * 50, "é" * 25, "x" + "é" * 25, "\U0001f600" * 10, r"\\" * 50, r"\"" * 49]
)
def test_a_long_value_is_cut_between_characters(value) -> None:
    page = read(f'm{{a="{value}"}} 1\n', value_bytes=20)
    ((labels, _),) = page.of("m")
    assert 16 < len(labels["a"].encode()) <= 20 and page.repaired == {"cut": 1}


def test_long_lines_long_pages_and_many_lines() -> None:
    assert read(f'm{{a="{"x" * 200}"}} 1\nn 1\n', line_bytes=100).dropped == {"line_too_long": 1}
    assert read("m 1\nn 1\n", page_bytes=5).dropped == {"malformed": 1, "page_too_long": 1}
    page = read("m 1\nn 1\no 1\n", lines=2)
    assert page.dropped == {"too_many_lines": 1} and page.count == 2


# Against everything


def page_of(page: Page) -> tuple[object, ...]:
    """Return a page such that two with NaN in the same place are equal."""
    samples = {name: {labels: repr(value) for labels, value in s.items()} for name, s in page.samples.items()}
    return samples, page.kinds, page.helps, page.dropped, page.repaired


class Plain(Parser):
    """The parser without its shortcut."""

    def _usual_line(self, _: bytes) -> bool:
        return False


LIKELY = st.sampled_from(
    [*'{}",\\=# \t\n\r.eE+-_0123456789', "m", "n_total", 'a="b"', "NaN", "+Inf", "# TYPE m gauge\n", "\x1b",
     "é", "\u202e", 'm{a="b"} 1\n', 'm{a="b",c="d"} 2 3\n', "# EOF\n", '\\"', "\\n", '"} 1\n',
     'm{b="x"} 1e5\n', "1e999", "__name__"]
)  # fmt: skip
LIKELY_PAGES = st.lists(LIKELY, max_size=60).map(lambda parts: "".join(parts).encode())
SMALL = Limits(
    page_bytes=300, lines=20, line_bytes=60, names=3, series=4, labels=2, name_bytes=8, value_bytes=6
)


@settings(max_examples=300, deadline=None)
@given(LIKELY_PAGES | st.binary(max_size=300), st.sampled_from([LIMITS, SMALL]), LIKELY_PAGES)
@example(b'm{a="b"} 1\nm{a="b"} 1\n', SMALL, b"")
def test_any_bytes_are_read_the_same_with_and_without_the_shortcut(data, limits, last) -> None:
    before = parse(last, limits)
    page = parse(data, limits, before=before)
    assert page_of(page) == page_of(Plain(limits, before).parse(data))
    assert page.count <= limits.series and len(page.samples) <= limits.names
    for series in page.samples.values():
        for labels in series:
            assert list(labels) == sorted(labels) and len(labels) <= limits.labels
            for name, value in labels:
                assert value and value.isprintable() and len(value.encode()) <= limits.value_bytes
                assert re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", name) and len(name) <= limits.name_bytes


NAMES = st.from_regex("[a-zA-Z_][a-zA-Z0-9_]{0,10}", fullmatch=True).filter(lambda name: name != "__name__")
VALUES = st.text(st.characters(codec="utf-8"), max_size=30)
LABELS = st.dictionaries(NAMES, VALUES, max_size=5)
NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**60), 2**60).map(float)


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(NAMES, LABELS, NUMBERS), max_size=10), st.booleans())
def test_what_is_written_is_read(samples, has_times) -> None:
    wanted: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    lines = []
    for name, labels, value in samples:
        block = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
        text = "+Inf" if value == math.inf else "-Inf" if value == -math.inf else repr(value)
        lines.append(f"{name}{{{block}}} {text}{' 1700000000000' if has_times else ''}\n")
        wanted[name, frozenset((k, clean(v)) for k, v in labels.items() if clean(v))] = value
    page = read("".join(lines))
    assert not page.dropped.keys() - {"duplicate"}
    assert {(n, frozenset(k)): v for n, s in page.samples.items() for k, v in s.items()} == wanted


@pytest.mark.parametrize("form", ["text", "openmetrics"])
def test_our_own_page_reads_as_others_read_it(form: Form) -> None:
    text = render(families_of(full.snapshot(), has_debug_labels=True), form)
    theirs = (client_openmetrics if form == "openmetrics" else client_text)(text)
    wanted = {
        (s.name, tuple(sorted(pair for pair in s.labels.items() if pair[1]))): s.value
        for family in theirs
        for s in family.samples
    }
    page = read(text)
    assert {(name, labels): v for name, s in page.samples.items() for labels, v in s.items()} == wanted
    assert not page.dropped and not page.repaired
    assert page.kind_of("gpulimit_scheduler_turn_seconds_bucket") == "histogram"


def test_a_damaged_page_is_read_as_far_as_it_can_be() -> None:
    """Bytes of a good page changed, removed, doubled, at random."""
    good = render(families_of(full.snapshot(), has_debug_labels=False), "text").encode()
    chance = random.Random(7)  # noqa: S311
    whole = parse(good).count
    for _ in range(100):
        data = bytearray(good)
        for _ in range(chance.randrange(1, 20)):
            place = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[place] = chance.randrange(256)
                case 1:
                    del data[place : place + chance.randrange(1, 50)]
                case 2:
                    data[place:place] = data[place : place + chance.randrange(200)]
                case 3:
                    data[place:place] = chance.choice([b'"', b"{", b"}", b"\n", b"\\", b"\x1b[2J", b"\xff"])
        page = parse(bytes(data))
        assert whole - 60 <= page.count <= whole + 60


def test_limits_can_be_replaced() -> None:
    assert replace(LIMITS, series=1).series == 1


def test_labels_that_the_last_page_had_are_read_alike_and_forgotten_once_they_are_gone() -> None:
    data = b'a{x="1",y="2"} 1\na{x="1"} 4\na{x="\xe2\x80\xae"} 2\na{ z = "3" } 3\n'
    first = parse(data)
    again = parse(data.replace(b" 4", b" 5"), before=first)
    assert again == parse(data.replace(b" 4", b" 5"))
    assert again.repaired == first.repaired == {"cleaned": 1}, "counted for each page"
    assert set(first.blocks) == set(again.blocks) == {b'x="1"'}
    assert not parse(b'a{x="1",y="2"} 1\n', before=again).blocks
