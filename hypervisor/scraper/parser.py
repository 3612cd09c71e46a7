# SPDX-License-Identifier: Apache-2.0
"""Parses Prometheus' text format 0.0.4 and OpenMetrics from an untrusted server. Pure.

It never raises: an invalid line is dropped and counted. Lines only end at LF. Timestamps and exemplars are
skipped. Time and memory are linear in the size of the page, whatever its content.

prometheus_client's parser is not used. It stops at the first bad line, has no bounds, keeps control
characters, and takes seven times as long: 2.6 s of CPU time instead of 0.4 s for the pages of a hundred nodes
with eight GPUs each (`python -m tests.remote.measure`).
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypervisor.scraper.limits import LIMITS, Limits

Labels = tuple[tuple[str, str], ...]
"""Sorted by name, without empty values: an empty label means no label."""
Series = dict[Labels, float]

NUMBER = rb"[+-]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?|[nN]a[nN]|[+-]?[iI]nf"
QUOTED = rb'"((?:[^"\\]|\\.)*+)"'
NAME = rb"[a-zA-Z_:][a-zA-Z0-9_:]*+"
PAIR = re.compile(rb"[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+" + QUOTED + rb"[ \t]*+(?:,[ \t]*+|\Z)")
SIMPLE = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*+)="([^"]++)"(?:,|\Z)')
SAMPLE = re.compile(
    rb"[ \t]*+(" + NAME + rb")[ \t]*+(?:\{((?:[^\"}]|" + QUOTED.replace(b"(", b"(?:", 1) + rb")*+)\})?"
    rb"(?<=[} \t])[ \t]*+(" + NUMBER + rb")(?:[ \t]++(?:" + NUMBER + rb"))?[ \t]*+(?:(?<=[ \t])#.*+)?\r?\n?"
)
META = re.compile(rb"[ \t]*+#[ \t]++(HELP|TYPE)[ \t]++(" + NAME + rb")[ \t]*+(.*+)\n?")
INF = math.inf
PLAIN = b"0123456789.eE+- \n"
"""Characters of most values, of the space before, and of the line's end."""
KINDS = frozenset(
    ("counter", "gauge", "histogram", "summary", "untyped", "unknown", "info", "stateset", "gaugehistogram")
)
SUFFIXES = re.compile(r"_(?:total|bucket|sum|count|created|info|gcount|gsum)\Z")
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
ESCAPES = {"\\": "\\", '"': '"', "n": "\n"}


@dataclass(frozen=True, slots=True)
class Page:
    """Content of one page."""

    samples: dict[str, Series] = field(default_factory=dict)
    """Series by sample name; a histogram has x_bucket, x_sum and x_count."""
    kinds: dict[str, str] = field(default_factory=dict)
    """Kinds by family name."""
    helps: dict[str, str] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    """Samples left out, by reason."""
    repaired: Counter[str] = field(default_factory=Counter)
    """Changed label values by the change: cleaned, cut."""
    blocks: dict[bytes, Labels] = field(default_factory=dict, repr=False, compare=False)
    """Labels by the text between braces, where that is of the usual form: most are on the next page, too."""

    @property
    def count(self) -> int:
        """Number of series."""
        return sum(map(len, self.samples.values()))

    def of(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yield labels and value of each series of a name."""
        for labels, value in self.samples.get(name, {}).items():
            yield dict(labels), value

    def kind_of(self, name: str) -> str:
        """Return the kind of a sample's family, untyped if the page does not say."""
        return self.kinds.get(name) or self.kinds.get(SUFFIXES.sub("", name)) or "untyped"


EMPTY = Page()


def parse(data: bytes, limits: Limits = LIMITS, *, before: Page = EMPTY) -> Page:
    """Return the parsed page.

    `before` is the same exporter's last page: if the page exceeds the bounds, its series have priority. If a
    series has two samples, the last one counts, and the other is counted as a duplicate.
    """
    return Parser(limits, before).parse(data)


class Parser:
    """Parser state of one page."""

    def __init__(self, limits: Limits, before: Page) -> None:
        self._limits = limits
        self._before = before
        self.page = Page()
        self._by_name: dict[bytes, tuple[Series, Series]] = {}
        """The series of each name, and those of the last page."""
        self._by_block: dict[bytes, Labels] = {}
        self._room = limits.series - before.count
        self._name_room = limits.names - len(before.samples)

    def parse(self, data: bytes) -> Page:
        """Read all lines."""
        limits, dropped = self._limits, self.page.dropped
        # Not split(): a page of line ends only would become a list many times its size.
        for number, line in enumerate(io.BytesIO(data[: limits.page_bytes])):
            if number >= limits.lines:
                dropped["too_many_lines"] += 1
                break
            if not self._usual_line(line):
                self._line(line)
                if line == b"# EOF\n":
                    break
        if len(data) > limits.page_bytes:
            dropped["page_too_long"] += 1
        for name in [name for name, series in self.page.samples.items() if not series]:
            del self.page.samples[name]  # all its series were refused
        return self.page

    def _usual_line(self, line: bytes) -> bool:
        """Parse a line of the usual form, in few steps; return False for any other line."""
        name, _, rest = line.partition(b"{")
        block, brace, tail = rest.rpartition(b"}")
        series = self._by_name.get(name)
        if series is None or not brace or tail.translate(None, PLAIN):
            return False
        # In a block that parses to its end, the quotes are closed, so this is the right brace.
        labels = self._by_block.get(block) or self._labels_before(block) or self._usual_labels(block)
        try:
            value = float(tail)
        except ValueError:
            return False
        values, before = series
        if labels is None or labels in values or self._room <= 0 or not -INF < value < INF:
            return False
        if labels not in before:
            self._room -= 1
        values[labels] = value
        return True

    def _labels_before(self, block: bytes) -> Labels | None:
        """Return the labels of a block that the last page had in the usual form; else None."""
        labels = self._before.blocks.get(block)
        if labels is not None:
            self._by_block[block] = self.page.blocks[block] = labels
        return labels

    def _usual_labels(self, block: bytes) -> Labels | None:
        """Return the labels of a block of the usual form, without blanks and escapes; else None."""
        text = block.decode(errors="replace")
        if (
            not text.isascii()
            or not text.isprintable()
            or "\\" in text
            or len(text) > self._limits.value_bytes
        ):
            return None
        pairs = SIMPLE.findall(text)
        by_key = dict(pairs)
        # Each label also has =, two quotes and, except the last, a comma.
        length = sum(map(len, by_key)) + sum(map(len, by_key.values())) + 4 * len(by_key) - 1
        is_whole = length == len(text) and len(by_key) == len(pairs) and "__name__" not in by_key
        if (
            not is_whole
            or len(pairs) > self._limits.labels
            or max(map(len, by_key)) > self._limits.name_bytes
        ):
            return None
        pairs.sort()
        labels = self._by_block[block] = self.page.blocks[block] = tuple(pairs)
        return labels

    def _line(self, line: bytes) -> None:
        """Parse any line."""
        limits, dropped = self._limits, self.page.dropped
        if len(line) > limits.line_bytes:
            dropped["line_too_long"] += 1
            return
        found = SAMPLE.fullmatch(line)
        if found is None:
            if line.lstrip(b" \t").startswith(b"#"):
                self._meta(line)
            elif line.strip():
                dropped["malformed"] += 1
            return
        name, block, text = found.groups()
        value = float(text)
        if len(name) > limits.name_bytes:
            dropped["name_too_long"] += 1
        elif math.isinf(value) and not text.lower().endswith(b"inf"):
            dropped["malformed"] += 1
        elif (labels := self._labels(block or b"")) is not None:
            self._put(name, labels, value)

    def _put(self, name: bytes, labels: Labels, value: float) -> None:
        """Store a sample, unless its series is new and there is no room."""
        series = self._series(name)
        if series is None:
            return
        values, before = series
        if labels in values:
            self.page.dropped["duplicate"] += 1
        elif labels not in before:
            if self._room <= 0:
                self.page.dropped["too_many_series"] += 1
                return
            self._room -= 1
        values[labels] = value

    def _series(self, name: bytes) -> tuple[Series, Series] | None:
        """Return the series of a name; None if the name is new and there is no room."""
        series = self._by_name.get(name)
        if series is not None:
            return series
        text = name.decode()
        if text not in self._before.samples:
            if self._name_room <= 0:
                self.page.dropped["too_many_names"] += 1
                return None
            self._name_room -= 1
        values = self.page.samples[text] = {}
        series = self._by_name[name] = values, self._before.samples.get(text, {})
        return series

    def _labels(self, block: bytes) -> Labels | None:
        """Return the labels between braces; None, and count the sample as dropped, if they are unusable."""
        known = self._by_block.get(block)
        if known is not None:
            return known
        pairs: dict[str, str] = {}
        position, end = 0, len(block.rstrip(b" \t"))
        while position < end:
            found = PAIR.match(block, position)
            key = found[1].decode() if found else ""
            if found is None or key in pairs or key == "__name__":
                self.page.dropped["malformed"] += 1
                return None
            if len(pairs) >= self._limits.labels:
                self.page.dropped["too_many_labels"] += 1
                return None
            if len(key) > self._limits.name_bytes:
                self.page.dropped["name_too_long"] += 1
                return None
            pairs[key] = self._value(found[2])
            position = found.end()
        labels = tuple(sorted(pair for pair in pairs.items() if pair[1]))
        self._by_block[block] = labels
        return labels

    def _value(self, raw: bytes) -> str:
        """Return a label's value in a form that is safe to show."""
        longest = self._limits.value_bytes
        # Twice the length: every character may be escaped. The rest is never decoded.
        text = unescaped(raw[: 2 * longest + 2].decode(errors="replace"))
        value = clean(text)
        if value != text:
            self.page.repaired["cleaned"] += 1
        if len(raw) > 2 * longest + 2 or len(value.encode()) > longest:
            self.page.repaired["cut"] += 1
            value = value.encode()[:longest].decode(errors="ignore")
        return value

    def _meta(self, line: bytes) -> None:
        """Parse a comment, which may describe a family."""
        found = META.fullmatch(line)
        if found is None or len(found[2]) > self._limits.name_bytes:
            return
        word, name, rest = found[1], found[2].decode(), found[3].strip()
        into = self.page.kinds if word == b"TYPE" else self.page.helps
        if name in into or len(into) >= self._limits.names:
            return
        text = rest[: self._limits.help_bytes].decode(errors="ignore")
        if word == b"HELP":
            into[name] = clean(unescaped(text).replace("\n", " "))
        elif text in KINDS:
            into[name] = text


def unescaped(text: str) -> str:
    r"""Return text with \\, \" and \n resolved; another escape stays as it is."""
    if "\\" not in text:
        return text
    return ESCAPE.sub(lambda found: ESCAPES.get(found[1], found[0]), text)


def clean(text: str) -> str:
    """Return text without invisible characters: control, bidirectional and zero-width characters, line
    separators,
    surrogates, and characters that Unicode does not define.
    """
    if text.isprintable():
        return text
    return "".join(character for character in text if character.isprintable())
