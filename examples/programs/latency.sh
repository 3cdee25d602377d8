#!/bin/bash
# Latency of a message and its answer, sleeping on events: C's ibv_rc_pingpong -e beside the
# blocking channel, and async channels in tokio and smol. Interleaved and pinned; the median of the
# pairwise ratios to C, since single runs of an emulated machine mean nothing.
#
#   examples/programs/latency.sh PROGRAMS [ROUNDS [MESSAGES [BYTES]]]
#
# PROGRAMS is where the examples are, as target/release. DEVICE and PEER are two devices with a wire
# between them, rxe0 and rxe1 unless set; GID is the index that C needs, 1 unless set.
set -euo pipefail
programs=${1:?where are the programs? (target/release)}
rounds=${2:-10} messages=${3:-1000} bytes=${4:-64}
device=${DEVICE:-rxe0} peer=${PEER:-rxe1} gid=${GID:-1}
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

# Tries for ten seconds.
retry() {
    for _ in $(seq 100); do
        if "$@"; then return; fi
        sleep 0.1
    done
    echo "latency.sh: gave up: $*" >&2
    exit 1
}

# Microseconds of each message and its answer, on the average.
c() {
    local pingpong=(ibv_rc_pingpong -g "$gid" -e -s "$bytes" -n "$messages")
    taskset -c 0 "${pingpong[@]}" -d "$device" >/dev/null &
    retry taskset -c 1 "${pingpong[@]}" -d "$peer" localhost 2>/dev/null >"$scratch/c"
    wait
    sed -n 's/.*= \([0-9.]*\) usec.*/\1/p' "$scratch/c"
}

ours() {
    local program=$programs/$1
    shift
    taskset -c 0 "$program" -d "$device" --wait 60 "${server[@]}" >"$scratch/server" &
    retry grep -q "TCP port" "$scratch/server"
    VERBS_RESULT_LINES=1 taskset -c 1 "$program" -d "$peer" -s "$bytes" -n "$messages" "$@" \
        localhost >"$scratch/ours"
    wait
}

channel() {
    server=(-e)
    ours channel_echo -e --way scoped
    awk '/^RESULT/ { for (i = 2; i <= NF; i++) { split($i, v, "="); r[v[1]] = v[2] } print r["usec"] / r["iters"] }' \
        "$scratch/ours"
}

async() {
    server=(--clients 1)
    ours "$1"
    sed -n 's/^microseconds: mean \([0-9.]*\).*/\1/p' "$scratch/ours"
}

for round in $(seq "$rounds"); do
    echo "$(c) $(channel) $(async async_echo) $(async smol_echo)"
done | tee "$scratch/all"

median() { sort -n | awk '{ v[NR] = $1 } END { print (v[int((NR + 1) / 2)] + v[int((NR + 2) / 2)]) / 2 }'; }
echo
printf '%-28s%14s%14s\n' "$bytes bytes, $rounds rounds" "median us" "ratio to C"
column=1
for name in "C, ibv_rc_pingpong -e" "channel_echo -e, scopes" "async_echo, tokio" "smol_echo"; do
    took=$(awk -v n=$column '{ print $n }' "$scratch/all" | median)
    ratio=$(awk -v n=$column '{ print $n / $1 }' "$scratch/all" | median)
    printf '%-28s%14.1f%14.3f\n' "$name" "$took" "$ratio"
    column=$((column + 1))
done
