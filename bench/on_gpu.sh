#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs tests/gpu on a machine with a real card and writes the outcome to a file:
#
#   bash bench/on_gpu.sh [OPTIONS OF PYTEST…]            e.g. -k torch
#
#   OUT=DIR         where results go (bench/results): gpu.json, gpu.txt, and pytest's own output in gpu.log
#   WHEELS=DIR      wheels to use where cffi or another package is missing, for a machine without a network
#   COMMIT=HASH     what is tested, where the checkout has no history
#   PYTHON=PATH     a Python that has the frameworks (python3)
#   WORK=DIR        where to build; kept.  Else a temporary folder, removed
set -euo pipefail
command="bash bench/on_gpu.sh $*"
# shellcheck source=bench/set_up.sh
source "$(dirname "$0")/set_up.sh"

# Only what the tests need: other plugins of this Python may warn, and warnings are errors.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
pytest=("$PYTHON" -m pytest tests/gpu -p pytest_timeout -p no:cacheprovider -q -o junit_duration_report=call)
beside=()
# Each program takes up to 6 GiB of the card, and some 2 cores.
if "$PYTHON" -c 'import xdist' 2>/dev/null; then
	free_mib=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits -i 0 2>/dev/null || echo 0)
	pairs=$(($(nproc) / 2))
	workers=$((pairs < free_mib / 6144 ? pairs : free_mib / 6144))
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
"$PYTHON" bench/gpu_report.py --commit "$COMMIT" --command "$command" --seconds "$SECONDS" \
	--out "$OUT/gpu" "$WORK"/together.xml "$WORK"/alone.xml
exit "$status"
