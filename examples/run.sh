#!/usr/bin/env bash
# Runs an example, and installs a Redis server if there is none. See `usage`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh

# Lists `hello` first, then the others by name. The first line of an example's file describes it.
examples() {
    local file
    describe examples/hello.rs
    for file in examples/*.rs; do
        [ "$file" = examples/hello.rs ] || describe "$file"
    done
    describe examples/command.sh
}

describe() {
    local name=${1##*/}
    printf '  %-12s %s\n' "${name%.*}" "$(sed -n '1s/^\/\/! //p; 2s/^# //p' "$1")"
}

usage() {
    cat <<'EOF'
usage: bash examples/run.sh [example] [arguments of the example]

Runs an example, `quickstart` if none is named. Starts a Redis server for it on a unix socket, and stops that server
afterwards. Installs a Redis server first if there is none.
To use a Redis that runs already: REDIS_URL=redis://... bash examples/run.sh

EOF
    examples
}

# Sets REDIS_URL to a server that ends with this script. (A socket in a new folder needs no free
# port.)
start_server() {
    need_server
    folder=$(mktemp -d)
    # If the locale that is set is not installed, the server would not start.
    LC_ALL=C "$(command -v redis-server || command -v valkey-server)" --port 0 --unixsocket "$folder/socket" \
        --dir "$folder" --save '' --appendonly no >"$folder/log" 2>&1 &
    server=$!
    trap stop_server EXIT
    until [ -S "$folder/socket" ]; do
        kill -0 "$server" 2>/dev/null || die "the Redis server did not start: $(cat "$folder/log")"
        sleep 0.05
    done
    export REDIS_URL=unix://$folder/socket
}

stop_server() {
    kill "$server" 2>/dev/null || true
    wait "$server" || true
    rm -rf "$folder"
}

case ${1:-} in
    -h | --help)
        usage
        exit
        ;;
esac

example=${1:-quickstart}
if [ "$example" = command ]; then
    need_cargo
    [ -n "${REDIS_URL:-}" ] || start_server
    say 'cargo build --package relatch-cli (the first time takes a while)'
    cargo build --quiet --locked --package relatch-cli
    bash examples/command.sh "${CARGO_TARGET_DIR:-target}/debug/relatch"
    exit
fi
[ -f "examples/$example.rs" ] || die "there is no example $example, but these are:
$(examples)"
need_cargo
features=()
case $example in
    sentinel | worker) need_server ;; # They start their own.
    tls)
        need_server
        features=(--features tls)
        ;;
    *) [ -n "${REDIS_URL:-}" ] || start_server ;;
esac
say "cargo run --example $example (the first time takes a while to build)" >&2
cargo run --quiet "${features[@]}" --example "$example" -- "${@:2}"
