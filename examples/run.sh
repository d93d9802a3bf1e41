#!/usr/bin/env bash
# Runs an example with the servers that it needs. See `usage`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh
# shellcheck source=examples/servers.sh
. examples/servers.sh

usage() {
    cat <<'END'
usage: bash examples/run.sh [example] [arguments of the example]

Runs an example, `turns` if none is named, or one after the other with `all`. Starts the Redis servers that it needs,
and stops them afterwards. Installs a Redis server first if there is none.

END
    examples
}

# Lists `hello` first, then the others by name. The first line of an example's file describes it.
examples() {
    local file
    describe examples/hello.rs
    for file in examples/*.rs; do
        [ "$file" = examples/hello.rs ] || describe "$file"
    done
    echo '  sentinel     The same as `turns`, and sentinels replace the master, which is killed.'
    echo '  cluster      The same as `turns`, in a Redis Cluster, and a master is killed.'
    describe examples/command.sh
}

describe() {
    local name=${1##*/}
    printf '  %-12s %s\n' "${name%.*}" "$(sed -n '1s/^\/\/! //p; 2s/^# //p' "$1")"
}

# build <cargo's arguments>: sets `built` to the folder of what is built: RELATCH_BUILT, if it is
# set.
build() {
    [ -z "${RELATCH_BUILT:-}" ] || { built=$RELATCH_BUILT && return; }
    need_cargo
    say "cargo build $* (the first time takes a while)" >&2
    cargo build --quiet --locked "$@"
    built=$(cargo metadata --locked --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug
}

# play <example> [argument]...: runs it as its part of this script says.
play() {
    local name=$1 program=$built/examples/$1
    shift
    case $name in
        hello | bank | busy | cache | cron | fence | lost | mail | moved | rayon | tokio | turns | leader | migration | \
            worker | web)
            need_redis
            ;;
    esac
    case $name in
        leader | migration)
            beside "$program"
            sleep 2
            say 'Redis is silent for five seconds'
            kill -STOP "$server"
            sleep 5
            kill -CONT "$server"
            say 'Redis answers again'
            wait "$beside"
            ;;
        worker)
            beside "$program"
            sleep 2
            say 'SIGTERM'
            kill -TERM "$beside"
            wait "$beside"
            ;;
        web) ask_the_web "$program" ;;
        sentinel) by_sentinel "$built/examples/turns" ;;
        cluster) in_a_cluster "$built/examples/turns" ;;
        tls) over_tls "$program" ;;
        command)
            need_redis
            bash examples/command.sh "$built/relatch"
            ;;
        *) "$program" "$@" ;;
    esac
}

# Two requests for one order at a time, then another one, and what the metrics say.
ask_the_web() {
    local url=''
    beside "$1" 127.0.0.1:0 >"$folder/web"
    until [ -s "$folder/web" ]; do sleep 0.05; done
    url=$(cat "$folder/web")
    say "$url"
    ask POST /orders/42 "$url" &
    local first=$!
    sleep 0.3
    ask POST /orders/42 "$url"
    wait "$first"
    ask POST /orders/42 "$url"
    ask GET /metrics "$url" | grep -E '^[^#]*(acquired|timed_out)_total'
    kill "$beside"
}

# ask <method> <path> <url>: prints the status and the body of the answer.
ask() {
    local host=${3#http://}
    exec 3<>"/dev/tcp/${host%:*}/${host#*:}"
    printf '%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n' "$1" "$2" "$host" >&3
    printf '%s %s: %s\n' "$1" "$2" "$(tr -d '\r' <&3 | sed '1s/^[^ ]* //; 2,/^$/d')"
    exec 3>&-
}

example=${1:-turns}
[ $# -eq 0 ] || shift
package=(--package relatch-examples)
case $example in
    -h | --help)
        usage
        exit
        ;;
    all)
        build --workspace --bins --examples --features relatch-examples/tls
        for example in hello busy bank mail cache cron worker moved lost fence migration leader turns web rayon tokio \
            tls sentinel cluster command; do
            say "$example"
            play "$example"
        done
        ;;
    testing)
        need_cargo
        cargo test --quiet --locked "${package[@]}" --example testing
        ;;
    timeline)
        # The picture in the README.
        build "${package[@]}" --example timeline
        need_redis
        "$built/examples/timeline"
        ;;
    command)
        build --package relatch-cli
        play command
        ;;
    sentinel | cluster)
        build "${package[@]}" --example turns
        play "$example"
        ;;
    *)
        [ -f "examples/$example.rs" ] || die "there is no example $example, but these are:
$(examples)"
        features=()
        [ "$example" != tls ] || features=(--features tls)
        build "${package[@]}" --example "$example" ${features[@]+"${features[@]}"}
        play "$example" "$@"
        ;;
esac
