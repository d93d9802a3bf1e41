#!/usr/bin/env bash
# Runs what takes too long for every run of the tests. See `usage`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh

usage() {
    cat <<'EOF'
usage: bash tests/chaos.sh [acquisitions]

Everything that takes too long for tests/run.sh, in less than three quarters of an hour:

  - the tests that are marked as slow, the wider bounds of the model, the tests of the benchmarks
    against other locks, and those of addresses without the feature tls
  - the whole integration suite as a user with the least rights, by a sentinel, and with each server
    as a cluster
  - histories: in each kind of bad weather, locks are taken as often as the argument says (by
    default 100000 times), and what was claimed is compared with what the servers did
  - a hundred failovers to a replica that was cut off: no lock that all replicas have acknowledged
    is lost
  - a million fencing tokens, over restarts without persistence and other losses of the counter:
    each is larger than all before it

Goes on after a failure, ends with a table, and fails if anything failed.
EOF
}

case ${1:-} in
    -h | --help)
        usage
        exit
        ;;
    *[!0-9]* | 0*) die "not a number of acquisitions: $1 (bash tests/chaos.sh --help)" ;;
esac

# The limit for everything, in seconds.
limit=2700
acquisitions=${1:-100000}
need_cargo
need_server
need_prometheus

log=$(mktemp)
trap 'rm -f "$log"' EXIT
results=()
failed=0

# part <name> <command>...: runs it within what is left of the time.
part() {
    local name=$1 start=$SECONDS result=ok
    shift
    say "$name: $*"
    limited $((limit - SECONDS > 1 ? limit - SECONDS : 1)) "$@" 2>&1 | tee -a "$log" | show_failures || {
        failed=1
        result=FAILED
        [ $SECONDS -lt $limit ] || result='OUT OF TIME'
        printf '\n== FAILED: %s\n   To run only this part:  cd %q && %s\n' "$name" "$PWD" "$*" >&2
    }
    results+=("$(printf '%-12s %5d s  %s' "$result" $((SECONDS - start)) "$name")")
}

part 'to build everything' cargo test --quiet --locked --workspace --features relatch/tls --no-run
# Each time with other seeds. A scene that fails prints its seed.
part 'simulated scenes' env "RELATCH_FIRST=$((RANDOM * 1000000))" RELATCH_SCENES=400000 \
    cargo test --profile simulation --quiet --locked --features tls,metrics --lib -- --nocapture \
    simulation::locks
part 'the model, wider' cargo test --quiet --locked --package relatch-model -- --ignored
part 'without TLS' cargo test --quiet --locked --lib address
part 'peers, also in other languages' \
    cargo test --quiet --locked --manifest-path benches/peers/Cargo.toml -- --include-ignored
part 'with the least rights' bash tests/rights.sh
# Left out: what is not the same by a sentinel. A replica is refused as soon as it says what it is,
# and the name of a host is the sentinel's.
part 'by a sentinel' env RELATCH_TEST_BY_SENTINEL=1 \
    cargo test --quiet --locked --features tls --test it -- --test-threads=5 \
    --skip on_a_replica --skip replica_is_not_reported --skip replica_without_its \
    --skip the_time_to_look_up_a_name --skip sentinel --skip failovers --skip cluster
# Left out: what is a cluster anyway, or has an address that must be none; what a cluster does not
# have (databases, `REPLICAOF`, sockets); what counts connections or threads, because the map is read
# over a connection of its own; and relays in front of TLS, which a node does not name.
part 'in a cluster' env RELATCH_TEST_IN_CLUSTER=1 \
    cargo test --quiet --locked --features tls --test it -- --test-threads=5 \
    --skip cluster --skip sentinel --skip failovers --skip replicas:: --skip on_a_replica \
    --skip replica_is_not_reported --skip replica_without_its --skip database \
    --skip ends_while_a_connection_is_opened --skip a_unix_socket --skip outside_of_a_cluster \
    --skip the_provider_is_asked_for_each --skip an_answer_of_a_slow_redis \
    --skip closes_no_connection_that_answers --skip impossible_leases --skip at_a_bounded_rate \
    --skip a_hundred_waiters --skip threads_cannot_start --skip too_many_clients \
    --skip a_half_open_connection_over_tls --skip cut_at_the_deadline --skip cut_costs_no_hold \
    --skip over_tls_while_connections_are_cut --skip the_password_is_never_printed \
    --skip announced_host_forges
# Two at a time: the failovers mostly wait.
part 'lossy failovers, fences, parcels, opposite orders' \
    env RELATCH_FAILOVERS=100 RELATCH_FENCES=1000000 RELATCH_ROUNDS=10000 RELATCH_TEST_LIMIT=$limit \
    cargo test --release --quiet --locked --features tls --test it -- --include-ignored --nocapture \
    --test-threads=2 lossy_failovers_lose_no a_million_fences_grow one_wins_ten_thousand_times \
    callers_with_opposite
part 'histories' env "RELATCH_ACQUISITIONS=$acquisitions" \
    cargo test --release --quiet --locked --features tls --test history -- --nocapture --test-threads=4

say 'parts'
printf '%s\n' "${results[@]}"
say 'simulated scenes'
sed -n 's/^\([0-9]* scenes, .*\)/\1/p' "$log"
say 'failovers that lose what a replica lacks'
sed -n 's/^.*failovers | //p' "$log"
say 'fencing tokens'
sed -n 's/^.*fences | //p' "$log"
say 'histories'
{
    echo 'weather | seeds | faults | locks taken | not taken | lost | unconfirmed | reported within'
    sed -n 's/^.*history | //p' "$log"
} | awk -F ' [|] ' '{ printf "%-12s %-24s %7s %12s %10s %6s %12s %12s\n", $1, $2, $3, $4, $5, $6, $7, $8 }'
exit $failed
