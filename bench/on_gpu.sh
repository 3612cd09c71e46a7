#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs tests/gpu on a machine with a real card and writes the outcome to a file:
#
#   bash bench/on_gpu.sh [OPTIONS OF PYTEST…]            e.g. -k torch
#
#   OUT=DIR         where results go (bench/results): gpu.json, gpu.txt, and pytest's own output in gpu.log
#   WHEELS=DIR      wheels to use where cffi is missing, for a machine without a network
#   COMMIT=HASH     what is tested, where the checkout has no history
#   PYTHON=PATH     a Python that has the frameworks (python3)
#   WORK=DIR        where to build; kept.  Else a temporary folder, removed
#
# Everything is built from a copy of the checkout, which stays as it is.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=${PYTHON:-python3}
OUT=$(mkdir -p "${OUT:-$root/bench/results}" && cd "${OUT:-$root/bench/results}" && pwd)
COMMIT=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
command="bash bench/on_gpu.sh $*"
started=$SECONDS

if [[ -n ${WORK:-} ]]; then
	mkdir -p "$WORK"
else
	WORK=$(mktemp -d)
	trap 'rm -rf "$WORK"' EXIT
fi
tree=$WORK/tree
# Compiled modules of another Python, and another machine's builds, stay behind.
mkdir -p "$tree"
tar -C "$root" -c --exclude='*.so' --exclude=__pycache__ --exclude=limiter/_lib \
	pyproject.toml setup.py README.md csrc limiter hypervisor bench tests | tar -C "$tree" -x
cd "$tree"
export PYTHONDONTWRITEBYTECODE=1

if ! "$PYTHON" -c 'import cffi' 2>/dev/null; then
	[[ -n ${WHEELS:-} ]] || { echo "on_gpu.sh: no cffi in $PYTHON; install it, or give WHEELS=DIR" >&2; exit 1; }
	for wheel in "$WHEELS"/*.whl; do
		"$PYTHON" -m zipfile -e "$wheel" "$WORK/site"
	done
	export PYTHONPATH="$WORK/site${PYTHONPATH:+:$PYTHONPATH}"
fi

jobs=$(nproc)
make -s -j"$jobs" -C csrc OUT="$tree/build/shim" &
shim=$!
make -s -j"$jobs" -C csrc/sim OUT="$tree/build/sim" &
sim=$!
"$PYTHON" limiter/_native_build.py "$tree" >"$WORK/native.log" 2>&1 || { cat "$WORK/native.log" >&2; exit 1; }
wait "$shim"
wait "$sim"
echo "on_gpu.sh: built in $((SECONDS - started)) s"

# Only what the tests need: other plugins of this Python may warn, and warnings are errors.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
pytest=("$PYTHON" -m pytest tests/gpu -p pytest_timeout -p no:cacheprovider -q -o junit_duration_report=call)
beside=()
# Each program takes up to 6 GiB of the card, and some 2 cores.
if "$PYTHON" -c 'import xdist' 2>/dev/null; then
	free_mib=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits -i 0 2>/dev/null || echo 0)
	workers=$((jobs / 2 < free_mib / 6144 ? jobs / 2 : free_mib / 6144))
	((workers > 1)) && beside=(-p xdist.plugin -n "$((workers < 8 ? workers : 8))" --dist worksteal)
fi
status=0
run() { # NAME OPTIONS…: status 5 is "no tests selected"
	local name=$1 result=0
	shift
	"${pytest[@]}" --junitxml="$WORK/$name.xml" "$@" || result=$?
	((result == 0 || result == 5)) || status=1
}
{
	run together -m 'not alone' "${beside[@]}" "$@"
	run alone -m alone "$@"
} > >(tee "$OUT/gpu.log") 2>&1
"$PYTHON" bench/gpu_report.py --commit "$COMMIT" --command "$command" --seconds $((SECONDS - started)) \
	--out "$OUT/gpu" "$WORK"/together.xml "$WORK"/alone.xml
exit "$status"
