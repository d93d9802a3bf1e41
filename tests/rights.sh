#!/usr/bin/env bash
# Runs the integration tests as the user of docs/operations.md, who has the least rights:
# bash tests/rights.sh
#
# The user's password occurs nowhere else. Nothing that is printed may contain it: neither what the
# tests and the processes that they start print, nor a panic, nor a log line at trace level. Redis
# may refuse a command of relatch only if a test wants that. The tests' part of this is in
# tests/rig/src/rights.rs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh

limit=600 # Seconds for the tests; they take about 90.

[ $# -eq 0 ] || die 'this takes no arguments'
need_cargo
need_server
need_prometheus

password="canary-$$-$RANDOM$RANDOM"
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT

# Built before the limit begins, because building has no limit.
tests='cargo test --locked --workspace --features relatch/tls'
$tests --test rig --test it --no-run

# as_the_user <tests> <threads> [arguments]: runs these tests, and returns what `limited` does.
as_the_user() {
    local which=$1 threads=$2
    shift 2
    RUST_BACKTRACE=0 RELATCH_TEST_LEAST_RIGHTS=$password \
        limited "$limit" \
        $tests --test "$which" -- --nocapture "--test-threads=$threads" "$@" >>"$printed" 2>&1
}

# The names of the failed tests, from the last list that was printed. (Children print such lists,
# too.)
failures() { tac "$printed" | sed -n '/^failures:$/q; s/^    \([a-z0-9_:]*\)$/\1/p'; }

say "the integration tests, as a user with the least rights (at most $limit s)"
as_the_user rig 6 || {
    tail -n 40 "$printed" >&2
    die "the tests of the rig failed"
}
status=0
as_the_user it 6 || status=$?
if [ "$status" -eq 101 ]; then
    # Many tests measure time, and the machine may be busy, so failed tests run once more. If a
    # right is missing, they fail again.
    mapfile -t again < <(failures)
    if [ "${#again[@]}" -gt 0 ] && [ "${#again[@]}" -le 10 ]; then
        say "by themselves, those that failed: ${again[*]}"
        status=0
        as_the_user it 1 --exact "${again[@]}" || status=$?
    fi
fi

if grep -Fq "$password" "$printed"; then
    grep -Fn "$password" "$printed" | head -20 >&2
    die 'the password was printed, see above'
fi
if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    tail -n 40 "$printed" >&2
    die "the tests were not done within $limit s; above is what was printed last"
fi
if [ "$status" -ne 0 ]; then
    tail -n 40 "$printed" >&2
    trap - EXIT
    printf 'All that was printed: %s\nTo run one of them: RELATCH_TEST_LEAST_RIGHTS=%s %s --test it <its name>\n' "$printed" "$password" "$tests" >&2
    die "the tests failed: $(failures | tr '\n' ' ')"
fi
if grep -F 'refused to the user with the least rights:' "$printed" | sort | uniq -c >&2; then
    die 'a right is missing in docs/operations.md, or something is sent that it does not allow'
fi
# If the tests had logged nothing, the search for the password would show nothing.
grep -q '^WARN relatch::lost ' "$printed" || die 'the tests logged nothing: was there a user at all?'
say "all is well: $(grep -c '^test .* \.\.\. ok$' "$printed" || true) tests passed, and among the $(wc -l <"$printed") lines that they printed is no password"
