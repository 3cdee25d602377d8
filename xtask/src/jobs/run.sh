# Runs jobs one after the other where the RDMA devices are; `mod.rs` appends them. Prints how each starts and ends.
code=0
# Only the first machine reports; the output of another one is shown beside it.
report() {
    [ "${SOFT_ROCE_HOST:-1}" != 1 ] || printf '%s\n' "$1"
}
ended() { # NAME CODE WHY
    [ "$2" = 0 ] && report "##end 0 $1" && return
    # A program that died may have left a line without an end.
    [ "$code" != 0 ] || code=$2
    printf '\n'
    report "##end $2 $1: $3"
}
# one NAME SECONDS _ COMMAND: its output goes on as it comes.
one() {
    local failed=0
    report "##start $1"
    timeout -k 5 "$2" bash -c "$4" </dev/null || failed=$?
    [ $failed != 124 ] || ended "$1" 124 "stopped: its time limit of $2 s is over"
    [ $failed = 124 ] || ended "$1" $failed "ended with $failed"
}
listens() { # PORT PROCESS, in whose network namespace a server may be
    local hex own state
    hex=$(printf %04X "$1")
    while read -r _ own _ state _; do
        [ "$state" = 0A ] && [ "${own##*:}" = "$hex" ] && return
    done < <(cat /proc/{self,"$2"}/net/tcp{,6} 2>/dev/null)
    return 1
}
# talk NAME SECONDS PORT SERVER CLIENT…: the clients start once the server listens. Their output is shown whole if anything
# fails, otherwise only the lines that are meant for a reader.
talk() {
    local name=$1 limit=$2 port=$3 end=$((SECONDS + $2)) failed=0 why= alive=1 pids=() dir at
    shift 3
    report "##start $name"
    dir=$(mktemp -d)
    while [ ${#pids[@]} -lt $# ] && [ $failed = 0 ]; do
        at=$((${#pids[@]} + 1))
        setsid bash -c "${!at}" >"$dir/$at" 2>&1 </dev/null &
        pids+=($!)
        until [ $at != 1 ] || [ $failed != 0 ] || listens "$port" "${pids[0]}"; do
            if ! kill -0 "${pids[0]}" 2>/dev/null; then
                wait "${pids[0]}" || failed=$?
                why="the server ended with $failed before it listened on port $port"
                [ $failed != 0 ] || failed=1
            elif [ $SECONDS -gt $end ]; then
                failed=124 why="the server did not listen on port $port in time"
            fi
            sleep 0.01
        done
    done
    while [ $failed = 0 ] && [ $alive = 1 ]; do
        alive=0
        for at in "${!pids[@]}"; do
            if kill -0 "${pids[at]}" 2>/dev/null; then
                alive=1
            else
                wait "${pids[at]}" || { failed=$? why="command $((at + 1)) ended with $?" && break; }
            fi
        done
        [ $failed != 0 ] || [ $SECONDS -le $end ] || failed=124 why="stopped: its time limit of $limit s is over"
        [ $alive = 0 ] || sleep 0.01
    done
    for at in "${!pids[@]}"; do
        kill -KILL -- "-${pids[at]}" 2>/dev/null
    done
    wait 2>/dev/null
    for at in $(seq ${#pids[@]}); do
        if [ $failed = 0 ]; then
            grep -a '^RESULT \|^{' "$dir/$at"
        else
            printf -- '--- %s\n' "${!at}"
            cat "$dir/$at"
        fi
    done
    rm -r "$dir"
    ended "$name" $failed "$why"
}
