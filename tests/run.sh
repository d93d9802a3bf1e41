#!/usr/bin/env bash
# Runs all checks, in an order that shows most mistakes early: bash tests/run.sh
# (What takes longer, for the day before a release: bash tests/chaos.sh)
#
# Installs a Redis server if there is none. Ends at the first failure (of a part that runs beside
# others: when these are done), and says how to run only the part that failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh

# failed <status> <seconds> <command>: says so, and ends.
failed() {
    local what=FAILED
    case $1 in 124 | 137) what="OUT OF TIME, not done within $2 s" ;; esac
    printf '\n== %s: %s\n' "$what" "$3" >&2
    printf '   To run only this part:  cd %q && RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings %s\n' \
        "$PWD" "$3" >&2
    exit 1
}

# part <seconds> <command>: runs the command. The limit is several times what the command takes on
# two cores with nothing built yet.
part() {
    local began=$SECONDS
    say "$2"
    limited "$1" bash -c "$2" 2>&1 | show_failures || failed $? "$@"
    took+=("$(printf '%4d s  %s' $((SECONDS - began)) "$2")")
}

# How long each part took.
took=()

# What runs beside the parts: a process, its command, and the files with what it prints and how long
# it took.
beside=() commands=() folder=$(mktemp -d)
trap 'kill $(jobs -pr) 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

# start <command>: runs the command beside the parts that follow.
start() {
    say "beside the others: $1"
    local file=$folder/${#beside[@]}
    timeout -k 10 900 bash -c 'trap "echo \$SECONDS >\"\$0\"" EXIT; eval "$1"' "$file.took" "$1" >"$file" 2>&1 &
    beside+=($!) commands+=("$1")
}

# finish: waits for what was started.
finish() {
    local i status
    for i in ${beside[@]+"${!beside[@]}"}; do
        status=0
        wait "${beside[i]}" || status=$?
        say "${commands[i]}"
        show_failures <"$folder/$i"
        [ $status -eq 0 ] || failed $status 900 "${commands[i]}"
        took+=("$(printf '%4d s  beside others: %s' "$(<"$folder/$i.took")" "${commands[i]}")")
    done
}

[ $# -eq 0 ] || die 'this takes no arguments; to run some tests only: cargo test --locked <part of their name>'
need_cargo
need_server
need_prometheus
# The lints look on while the compiler builds the tests, so that nothing is compiled once more for
# them. (These are not the binaries of a plain `cargo test`, which builds its own. The lints of all
# targets without features are a part of chaos.sh.)
clippy-driver --version >/dev/null 2>&1 || die 'clippy is missing: rustup component add clippy'
export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings
# With other packages or features, cargo would build some of them again.
all='--locked --workspace --features relatch/tls,relatch/metrics,relatch/tracing,relatch-examples/tls'
part 60 'cargo fmt --all --check'
part 60 'cargo fmt --check --manifest-path benches/peers/Cargo.toml'
part 1200 "cargo test $all --no-run"
part 600 "cargo test $all --benches --no-run"
builds=$(cargo metadata --locked --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
# The simulator's tests have a time of their own, so the integration tests come first. (With what
# is left by all others alone, they would not be done beside two busy loops.)
start "nice -n 10 cargo test $all --lib -- simulation interleavings --skip compared"
part 900 "cargo test $all --test it"
# These wait most of the time.
start "cargo test $all --test history -- --test-threads=4"
start "cargo test $all --test command --test rig -- --test-threads=4"
start "cargo test $all --lib compared"
start "RELATCH_BUILT=$builds/debug bash examples/run.sh all"
part 1200 "nice -n 5 cargo test $all --lib --bins --example testing -- --skip simulation --skip interleavings"
part 600 "nice -n 5 cargo test $all --doc"
part 300 'cargo check --locked --lib'
part 300 'cargo check --locked --lib --features tls-no-provider'
part 600 'RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --features tls,metrics'
# In the same directory, so that what both need is built once.
part 900 'cargo check --locked --all-targets --manifest-path benches/peers/Cargo.toml --target-dir target'
finish
say 'how long each part took, the longest first'
printf '%s\n' "${took[@]//$all/...}" | sort -rn
say "all is well, after $SECONDS s"
