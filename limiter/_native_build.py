# SPDX-License-Identifier: Apache-2.0
"""Builds limiter._native: the shim's quota parser, ledger and shared-memory layout, and csrc/node for the
daemon.

cffi reads the headers of csrc/ between their marks, and compares sizes and offsets with the C compiler's. So
there is no second copy that could become outdated. setuptools runs this file (`cffi_modules`);
`python limiter/_native_build.py DIRECTORY` builds DIRECTORY/limiter/_native*.so, without installing.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from cffi import FFI

CSRC = Path(__file__).resolve().parent.parent / "csrc"
HEADERS = (
    *("layout.h", "protocol.h", "quota/quota.h"),
    *("segment/ledger.h", "segment/live_quota.h", "segment/shares.h", "segment/slots.h"),
    *("node/usage.h", "node/policy.h", "node/turn_watch.h", "node/doorbell.h", "node/replace.h"),
    *("node/arrivals.h",),
)
SOURCES = (
    *("quota/quota.c", "quota/quota_card.c", "quota/quota_list.c", "quota/quota_text.c"),
    *("segment/ledger.c", "segment/live_quota.c", "segment/loans.c", "segment/shares.c", "segment/slots.c"),
    *("node/sigbus_guard.c", "node/usage.c", "node/policy.c", "node/turn_watch.c", "node/doorbell.c"),
    *("node/replace.c", "node/arrivals.c"),
)
PART = re.compile(r"/\* cffi: begin \*/(.*?)/\* cffi: end \*/", re.DOTALL)
CONSTANT = re.compile(r"^(#define \w+) .*$", re.MULTILINE)
STRING = re.compile(r'^#define (\w+) ".*$', re.MULTILINE)

# The environment as alternating names and values, ended by NULL: no callback into Python.
PAIRS = """
static const char *native_lookup(const char *name, void *pairs)
{
	for (const char **pair = pairs; pair[0]; pair += 2)
		if (strcmp(pair[0], name) == 0)
			return pair[1];
	return NULL;
}

static int gl_native_read(struct gl_quota *quota, const char **pairs)
{
	return gl_quota_read(quota, native_lookup, pairs);
}
"""


def declarations(header: Path) -> str:
    """Return a header's part for cffi; constants keep their names, the compiler supplies the values."""
    text = "\n".join(PART.findall(header.read_text(encoding="utf-8")))
    return CONSTANT.sub(r"\1 ...", STRING.sub(r"static const char *const \1;", text))


def make(csrc: Path) -> FFI:
    """Return the builder; `csrc` is relative for setuptools, which takes no absolute source."""
    ffi = FFI()
    for name in HEADERS:
        ffi.cdef(declarations(CSRC / name))
    ffi.cdef("static int gl_native_read(struct gl_quota *quota, const char **pairs);")
    includes = "".join(f'#include "{name}"\n' for name in HEADERS)
    ffi.set_source(
        "limiter._native",
        f"#include <string.h>\n{includes}{PAIRS}",
        sources=[str(csrc / name) for name in SOURCES],
        include_dirs=[str(CSRC)],
        depends=[str(path) for path in sorted([*CSRC.glob("*.h"), *CSRC.glob("*/*.h")])],
        define_macros=[("_GNU_SOURCE", None)],
        extra_compile_args=["-std=gnu11", "-fvisibility=hidden"],
    )
    return ffi


if __name__ == "__main__":
    print(make(CSRC).compile(tmpdir=sys.argv[1]))
else:
    ffibuilder = make(Path(os.path.relpath(CSRC)))
