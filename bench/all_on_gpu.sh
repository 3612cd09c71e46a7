#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# All measurements, or some, on a machine with one card or several of one kind:
#
#   bash bench/all_on_gpu.sh [JOB…]      of share, overhead, fair, gang, top, idle, soak, tests; else all
#
#   OUT, WHEELS, COMMIT, PYTHON, WORK    as in on_gpu.sh, which is the job `tests`
#   CARDS=N                              use the first N cards (all)
#   SOAK_MINUTES=N                       8
#   DRY_RUN=1                            print what would run on which card, and for about how long
#   PACK=1                               at the end, put all that is in OUT into OUT/results.tar.gz too
#
# All jobs take about nine minutes on four cards, and more than twenty on one: name jobs to do it in several calls.  Each
# program's figures are data in OUT/NAME.json and its table, under what it was run on, in OUT/NAME.txt; what it said on the
# way is in OUT/NAME.log.  Ends with 1 if one of them failed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
CARDS=${CARDS:-$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | wc -l || true)}
((CARDS > 0)) || { echo "all_on_gpu.sh: nvidia-smi shows no card" >&2; exit 1; }
plan=$("${PYTHON:-python3}" "$here/schedule.py" --cards "$CARDS" "$@")
if [[ -n ${DRY_RUN:-} ]]; then
	echo "$plan"
	exit
fi
# shellcheck source=bench/set_up.sh
source "$here/set_up.sh"
export OUT COMMIT PYTHON CUDA_DEVICE_ORDER=PCI_BUS_ID

card() { nvidia-smi -i "$1" --query-gpu=name,driver_version --format=csv,noheader; }
measure() { # CARDS NAME PROGRAM OPTIONS…: its last lines are the table
	local gpu=$1 name=$2 program=$3
	shift 3
	CUDA_VISIBLE_DEVICES=$gpu "$PYTHON" "bench/$program" --library "$library" --out "$OUT/$name.json" "$@" \
		>"$WORK/$name.out" 2>"$OUT/$name.log" || failed "$name"
	{
		echo "$(card "$gpu"), commit $COMMIT, $(date +%F)"
		echo "python bench/$program --library libgpulimit.so $*"
		cat "$WORK/$name.out"
	} >"$OUT/$name.txt"
	cat "$OUT/$name.txt"
}
failed() { # NAME
	echo "$1: FAILED, see $1.txt and $1.log" >&2
	touch "$WORK/failed"
}
on_card() { # CARD: its part of the plan, one after the other
	local gpu _ name program options
	while read -r gpu _ name program options; do
		[[ $gpu == "$1" ]] || continue
		if [[ $program == on_gpu.sh ]]; then
			# shellcheck disable=SC2086 # options are words
			bash bench/on_gpu.sh $options </dev/null || failed "$name"
		else
			# shellcheck disable=SC2086
			measure "$gpu" "$name" "$program" $options </dev/null
		fi
	done <<<"$plan"
}

rm -f "$WORK/failed"
for ((gpu = 0; gpu < CARDS; gpu++)); do
	on_card "$gpu" &
done
wait
if ((CARDS > 1)) && grep -q 'gang\.py' <<<"$plan"; then # on all cards, so after the rest
	measure "$(seq -s, 0 $((CARDS - 1)))" gang-cards gang.py --parts limits,start,shares
fi
if [[ -n ${PACK:-} ]]; then
	tar -C "$OUT" -c --exclude=./results.tar.gz . | gzip >"$WORK/results.tar.gz"
	mv "$WORK/results.tar.gz" "$OUT/results.tar.gz"
fi
[[ ! -e $WORK/failed ]]
