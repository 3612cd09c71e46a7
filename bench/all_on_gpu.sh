#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# All measurements, on a machine with four cards of one kind, at once: about nine minutes.
#
#   bash bench/all_on_gpu.sh
#
#   OUT, WHEELS, COMMIT, PYTHON   as in on_gpu.sh, whose tests come last
#   SOAK_MINUTES                  8
#
# Each program's figures are data in OUT/NAME.json and its table, under what it was run on, in OUT/NAME.txt.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=${PYTHON:-python3}
export OUT=$(mkdir -p "${OUT:-$root/bench/results}" && cd "${OUT:-$root/bench/results}" && pwd)
COMMIT=${COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree
mkdir -p "$tree"
tar -C "$root" -c --exclude='*.so' --exclude=__pycache__ --exclude=limiter/_lib \
	pyproject.toml setup.py README.md csrc limiter hypervisor bench tests | tar -C "$tree" -x
cd "$tree"
export PYTHONDONTWRITEBYTECODE=1
if ! "$PYTHON" -c 'import cffi' 2>/dev/null; then
	for wheel in "${WHEELS:?no cffi in $PYTHON: give WHEELS=DIR}"/*.whl; do
		"$PYTHON" -m zipfile -e "$wheel" "$work/site"
	done
	export PYTHONPATH="$work/site${PYTHONPATH:+:$PYTHONPATH}"
fi
export PYTHONPATH="$tree${PYTHONPATH:+:$PYTHONPATH}"
make -s -j"$(nproc)" -C csrc OUT="$work/shim"
"$PYTHON" limiter/_native_build.py "$tree" >"$work/native.log" 2>&1 || { cat "$work/native.log" >&2; exit 1; }
library=$work/shim/libgpulimit.so

card() { nvidia-smi -i "$1" --query-gpu=name,driver_version --format=csv,noheader; }
measure() { # CARD NAME PROGRAM OPTIONS…: its last lines are the table
	local gpu=$1 name=$2 program=$3
	shift 3
	CUDA_VISIBLE_DEVICES=$gpu "$PYTHON" "bench/$program" --library "$library" --out "$OUT/$name.json" "$@" \
		>"$work/$name.out" 2>"$OUT/$name.log" || echo "$name: FAILED, see $name.log" >&2
	{
		echo "$(card "$gpu"), commit $COMMIT, $(date +%F)"
		echo "python bench/$program --library libgpulimit.so $*"
		cat "$work/$name.out"
	} >"$OUT/$name.txt"
	cat "$OUT/$name.txt"
}

first=memory_bound,gemm_512,long_12ms,graph,training,cooperative,four_streams
second=gemm_4096,long_300ms,bursts,triton,compiled,jax
limits=10,25,50,75,90
measure 3 soak soak.py --minutes "${SOAK_MINUTES:-8}" &
measure 1 share-1 share.py --workloads $first --limits $limits --seconds 10 --free-seconds 2 &
measure 2 share-2 share.py --workloads $second --limits $limits --seconds 10 --free-seconds 2 &
{
	measure 0 overhead overhead.py --rounds 3 --turns 8
	measure 0 fair fair.py --seconds 5
	CUDA_VISIBLE_DEVICES=0 COMMIT=$COMMIT bash "$root/bench/on_gpu.sh" -q || true
} &
wait
