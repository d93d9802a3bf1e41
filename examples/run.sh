#!/usr/bin/env bash
# Runs an example, and installs what it needs. See `usage`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh

examples() {
    local file
    for file in examples/*.rs; do
        file=${file##*/}
        printf '  %-12s %s\n' "${file%.rs}" "$(sed -n '1s/^\/\/! //p' "examples/$file")"
    done
}

usage() {
    cat <<'EOF'
usage: bash examples/run.sh [example] [arguments of the example]

Runs an example, `quickstart` if none is named. Installs a Redis server if there is none; the example starts it for
itself on a free port, and stops it. To use a Redis that runs already: REDIS_URL=redis://... bash examples/run.sh

EOF
    examples
}

case ${1:-} in
    -h | --help)
        usage
        exit
        ;;
esac

example=${1:-quickstart}
[ -f "examples/$example.rs" ] || die "there is no example $example, but these are:
$(examples)"
need_cargo
[ -n "${REDIS_URL:-}" ] || need_server
say "cargo run --example $example (the first time takes a while to build)"
exec cargo run --quiet --example "$example" -- "${@:2}"
