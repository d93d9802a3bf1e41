#!/usr/bin/env bash
# Runs what takes too long for every run of the tests. See `usage`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh

usage() {
    cat <<'EOF'
usage: bash tests/chaos.sh [locks]

Everything that takes too long for tests/run.sh, in less than half an hour:

  - simulated scenes, until locks were taken as often as the argument says (by default five million
    times), beside all that follows
  - the tests of addresses without the feature tls, and those of
    the benchmarks against other locks
  - the whole integration suite as a user with the least rights, by a sentinel, and with each server
    as a cluster
  - a hundred failovers to a replica that was cut off: no lock that all replicas have acknowledged
    is lost
  - a million takings of slots by simulated programs, and hundreds of thousands by processes of
    which one is killed each tenth of a second
  - a million fencing tokens, over restarts without persistence and other losses of the counter:
    each is larger than all before it
  - twenty thousand inputs, most of them broken, for each reader of bytes that come from outside
  - histories: in each kind of bad weather, thousands of locks are taken, and what was claimed is
    compared with what the servers did

Goes on after a failure, ends with a table, and fails if anything failed.
EOF
}

case ${1:-} in
    -h | --help)
        usage
        exit
        ;;
    *[!0-9]* | 0*) die "not a number of locks: $1 (bash tests/chaos.sh --help)" ;;
esac

# The limit for everything, in seconds.
limit=1800
locks=${1:-5000000}
need_cargo
need_server
need_prometheus

folder=$(mktemp -d)
pids=() names=() commands=()
trap 'kill ${pids[@]+"${pids[@]}"} 2>/dev/null || true; rm -rf "$folder"' EXIT
results=()
failed=0

left() { echo $((limit - SECONDS > 1 ? limit - SECONDS : 1)); }

# ended <name> <status> <command>...: adds a line to the table.
ended() {
    local name=$1 status=$2 result=ok
    shift 2
    if [ "$status" -ne 0 ]; then
        failed=1
        result=FAILED
        case $status in 124 | 137) result='OUT OF TIME' ;; esac
        printf '\n== FAILED: %s\n   To run only this part:  cd %q && %s\n' "$name" "$PWD" "$*" >&2
    fi
    results+=("$(printf '%-12s until %5d s  %s' "$result" $SECONDS "$name")")
}

# part <name> <command>...: runs it within what is left of the time.
part() {
    local name=$1 status=0
    shift
    say "$name: $*"
    limited "$(left)" "$@" 2>&1 | show_failures | tee -a "$folder/parts" || status=$?
    ended "$name" $status "$@"
}

# start <name> <command>...: runs it beside the parts that follow.
start() {
    local name=$1
    shift
    say "beside the others, $name: $*"
    timeout -k 10 "$(left)" "$@" >"$folder/${#pids[@]}" 2>&1 &
    pids+=($!) names+=("$name") commands+=("$*")
}

# finish: waits for what was started.
finish() {
    local i status
    for i in "${!pids[@]}"; do
        status=0
        wait "${pids[i]}" || status=$?
        say "${names[i]}"
        show_failures <"$folder/$i"
        ended "${names[i]}" $status "${commands[i]}"
    done
}

# play <locks> <command>...: plays scenes until so many locks were taken, each with another seed. A
# scene that fails prints its seed.
play() {
    local first=$((RANDOM * 1000000)) scenes=0 locks=0 printed taken
    while [ $locks -lt "$1" ]; do
        printed=$(RELATCH_FIRST=$((first + scenes)) RELATCH_SCENES=50000 "${@:2}" 2>&1) || {
            printf '%s\n' "$printed"
            return 1
        }
        taken=$(sed -n 's/^50000 scenes, \([0-9]*\) locks.*/\1/p' <<<"$printed")
        [ -n "$taken" ] || {
            printf '%s\n' "$printed"
            return 1
        }
        locks=$((locks + taken))
        scenes=$((scenes + 50000))
        echo "$scenes scenes, $locks locks, $SECONDS s"
    done
}
export -f play

# The simulator and all that is optimised, and the rest. (With other packages or features, cargo
# would build some of them again.)
# The features are those of `cargo seed`: with others, a seed leads to another scene.
fast='cargo test --profile simulation --quiet --locked --features tls,metrics,tracing'
rest='cargo test --quiet --locked --workspace --features relatch/tls'
part 'to build everything' bash -c "$fast --lib --test it --test history --no-run && $rest --no-run"
# These two get the time that the parts leave. In those, servers have to answer within some 300 ms.
start 'simulated scenes' nice -n 19 bash -c 'play "$@"' play "$locks" $fast --lib -- --nocapture simulation::locks
start 'lossy failovers, fences' \
    nice -n 10 env RELATCH_FAILOVERS=100 RELATCH_FENCES=1000000 RELATCH_TEST_LIMIT=$limit \
    $fast --test it -- --include-ignored --nocapture --test-threads=3 \
    lossy_failovers_lose_no a_million_fences_grow \
    many_killed_processes
start 'simulated slots' nice -n 19 env RELATCH_SCENES=50000 $fast --lib -- --nocapture many_holders
# It waits for leases most of the time. (A guard that gets no processor kills too late.)
start 'the command: 300 deaths of each kind' \
    env RELATCH_DEATHS=300 $rest --test command -- --nocapture deaths
# Not beside the parts below: they would be too slow for each other's timeouts.
part 'histories' env RELATCH_ACQUISITIONS=3000 $fast --test history -- --nocapture
part 'with the least rights' bash tests/rights.sh
# Left out: what is not the same by a sentinel. A replica is refused as soon as it says what it is,
# and the name of a host is the sentinel's.
part 'by a sentinel' env RELATCH_TEST_BY_SENTINEL=1 \
    $rest --test it -- \
    --skip on_a_replica --skip replica_is_not_reported --skip replica_without_its \
    --skip the_time_to_look_up_a_name --skip sentinel --skip failovers --skip cluster
# Left out: what is a cluster anyway, or has an address that must be none; what a cluster does not
# have (databases, `REPLICAOF`, sockets); what counts connections or threads, because the map is
# read over a connection of its own; and relays in front of TLS, which a node does not name.
part 'in a cluster' env RELATCH_TEST_IN_CLUSTER=1 \
    $rest --test it -- \
    --skip cluster --skip sentinel --skip failovers --skip replicas:: --skip on_a_replica \
    --skip replica_is_not_reported --skip replica_without_its --skip database \
    --skip ends_while_a_connection_is_opened --skip a_unix_socket --skip outside_of_a_cluster \
    --skip the_provider_is_asked_for_each --skip an_answer_of_a_slow_redis \
    --skip closes_no_connection_that_answers --skip impossible_options --skip at_a_bounded_rate \
    --skip a_hundred_waiters --skip threads_cannot_start --skip too_many_clients \
    --skip a_half_open_connection_over_tls --skip cut_at_the_deadline --skip cut_costs_no_hold \
    --skip over_tls_while_connections_are_cut --skip the_password_is_never_printed \
    --skip announced_host_forges
part 'the lints without TLS' cargo clippy --quiet --locked --all-targets -- -D warnings
# (Without the feature, a URL that asks for TLS is refused. The name must be that of the test.)
part 'without TLS' cargo test --quiet --locked --lib \
    client::url::parse::tests::a_bad_url_is_refused_with_the_reason_or_what_to_write -- --exact
part 'peers, also in other languages' \
    cargo test --quiet --locked --manifest-path benches/peers/Cargo.toml -- --include-ignored
part 'a scene that needs each excuse' $fast --lib -- --ignored --nocapture each_excuse_is_needed
part 'all orders of the rows' env RELATCH_NIGHT=1 $fast --lib -- rows:: interleavings::
part 'bytes from outside' env PROPTEST_CASES=20000 $fast --lib -- --skip simulation
finish

say 'parts'
printf '%s\n' "${results[@]}"
say 'simulated scenes'
sed -n 's/^\([0-9]* scenes, .*\)/\1/p' "$folder"/* | tail -n 1
say 'failovers that lose what a replica lacks'
sed -n 's/^.*failovers | //p' "$folder"/*
say 'fencing tokens'
sed -n 's/^.*fences | //p' "$folder"/*
say 'histories'
{
    echo 'weather | seeds | faults | locks taken | not taken | lost | unconfirmed | reported within'
    sed -n 's/^.*history | //p' "$folder"/*
} | awk -F ' [|] ' '{ printf "%-12s %-24s %7s %12s %10s %6s %12s %12s\n", $1, $2, $3, $4, $5, $6, $7, $8 }'
exit $failed
