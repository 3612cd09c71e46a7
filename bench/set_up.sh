# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Sourced by on_gpu.sh and all_on_gpu.sh: builds everything from a copy of the checkout, which stays as it is, and goes
# there.  Reads OUT, WHEELS, COMMIT, PYTHON and WORK, which those two describe.  Sets for them
#
#   PYTHON OUT COMMIT   filled in; OUT is there
#   WORK                a folder to work in; removed at the end, unless it was given
#   library             libgpulimit.so
#
# and what Python needs to find what was built.  A script that one of them calls uses the same: BUILT says where it is.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=${PYTHON:-python3}
OUT=${OUT:-$root/bench/results}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
COMMIT=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}

if [[ -n ${BUILT:-} ]]; then
	WORK=$BUILT
elif [[ -n ${WORK:-} ]]; then
	mkdir -p "$WORK"
	WORK=$(cd "$WORK" && pwd)
else
	WORK=$(mktemp -d)
	trap 'rm -rf "$WORK"' EXIT
fi
tree=$WORK/tree
# shellcheck disable=SC2034 # all_on_gpu.sh reads it
library=$tree/build/shim/libgpulimit.so

copy_tree() { # compiled modules of another Python, and another machine's builds, stay behind
	mkdir -p "$tree"
	tar -C "$root" -c --exclude='*.so' --exclude=__pycache__ --exclude=limiter/_lib \
		pyproject.toml setup.py README.md csrc limiter hypervisor bench tests | tar -C "$tree" -x
}

find_packages() { # the daemon's and the bindings': as they are installed, else from wheels
	local needed=aiohttp,cffi,posix_ipc,prometheus_client,pynvml wheel
	! "$PYTHON" -c "import $needed" 2>/dev/null || return 0
	[[ -n ${WHEELS:-} ]] || { echo "${0##*/}: $PYTHON lacks one of $needed; install them, or give WHEELS=DIR" >&2; exit 1; }
	for wheel in "$WHEELS"/*.whl; do
		"$PYTHON" -m zipfile -e "$wheel" "$WORK/site"
	done
	export PYTHONPATH="$WORK/site${PYTHONPATH:+:$PYTHONPATH}"
}

build() {
	local shim sim
	make -s -j"$(nproc)" -C csrc OUT="$tree/build/shim" &
	shim=$!
	make -s -j"$(nproc)" -C csrc/sim OUT="$tree/build/sim" &
	sim=$!
	"$PYTHON" limiter/_native_build.py "$tree" >"$WORK/native.log" 2>&1 || { cat "$WORK/native.log" >&2; exit 1; }
	wait "$shim"
	wait "$sim"
	echo "${0##*/}: built in $SECONDS s"
}

export PYTHONDONTWRITEBYTECODE=1
if [[ -z ${BUILT:-} ]]; then
	copy_tree
	cd "$tree" || exit
	find_packages
	build
	export PYTHONPATH="$tree${PYTHONPATH:+:$PYTHONPATH}" BUILT=$WORK
else
	cd "$tree" || exit
fi
