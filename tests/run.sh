#!/usr/bin/env bash
# Runs all checks, in an order that shows most mistakes early: bash tests/run.sh
# (What takes longer, for the day before a release: bash tests/chaos.sh)
#
# Installs a Redis server if there is none. Ends at the first failure, and says how to run only the
# part that failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh

# part <seconds> <command>: runs the command. The limit is several times what the command takes on
# two cores with nothing built yet.
part() {
    local status=0 what=FAILED
    say "$2"
    limited "$1" bash -c "$2" 2>&1 | show_failures || status=$?
    case $status in
        0) return ;;
        124 | 137) what="OUT OF TIME, not done within $1 s" ;;
    esac
    printf '\n== %s: %s\n' "$what" "$2" >&2
    printf '   To run only this part:  cd %q && %s\n' "$PWD" "$2" >&2
    exit 1
}

[ $# -eq 0 ] || die 'this takes no arguments; to run some tests only: cargo test --locked <part of their name>'
need_cargo
need_server
need_prometheus
# Most tests wait most of the time, so more of them than there are cores can run at once.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-10}"
part 60 'cargo fmt --all --check'
part 900 'cargo clippy --locked --all-targets --workspace -- -D warnings'
part 900 'cargo clippy --locked --all-targets --features tls,metrics -- -D warnings'
part 300 'cargo clippy --locked --lib --features tls-no-provider -- -D warnings'
part 900 'cargo test --locked --workspace --features relatch/tls,relatch/metrics --no-run'
# With other packages selected, cargo would build some of them again.
part 1200 'cargo test --locked --workspace --features relatch/tls,relatch/metrics'
part 300 'cargo run --locked --features tls,metrics --example worker'
part 60 'cargo run --locked --features tls,metrics --example shutdown'
part 60 'cargo run --locked --features tls,metrics --example pool'
part 600 'RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --features tls,metrics'
part 60 'cargo fmt --check --manifest-path benches/peers/Cargo.toml'
# In the same directory, so that what both need is built once.
part 900 'cargo clippy --locked --all-targets --manifest-path benches/peers/Cargo.toml --target-dir target -- -D warnings'
say 'all is well'
