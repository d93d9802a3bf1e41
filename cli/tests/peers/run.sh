#!/usr/bin/env bash
# Has other libraries take locks that `relatch` then finds busy, names and deletes, and vice versa.
# Needs the registries of Python, Node, Go and Java; leaves out a language that is missing.
#
#   bash cli/tests/peers/run.sh FOLDER    # what is installed stays in FOLDER for the next time
set -euo pipefail
peers=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "${1:?a folder}"
folder=$(cd "$1" && pwd)
cargo build --quiet --locked --manifest-path "$peers/../../Cargo.toml"
relatch=$peers/../../../target/debug/relatch
export RELATCH_PREFIX=

redis-server --bind 127.0.0.1 --port "${PORT:-17393}" --save '' >"$folder/log" &
trap 'kill $(jobs -p)' EXIT
export REDIS_URL=redis://127.0.0.1:${PORT:-17393}
ask() { redis-cli -p "${PORT:-17393}" "$@"; }
until ask ping >"$folder/ping" 2>&1; do sleep 0.1; done

die() {
    echo "error: $*" >&2
    exit 1
}

# peer LIBRARY COMMAND...: the command gets the URL, the library and a key.
peer() {
    local library=$1 said key token code
    shift
    ask flushall >"$folder/ping"
    said=$("$@" "$REDIS_URL" "$library" report 2>"$folder/err" | tail -1)
    [[ $said == *" taken" ]] || die "$library: $said $(cat "$folder/err")"
    key=$(ask --scan | head -1)
    code=0
    "$relatch" run -qn "$key" true || code=$?
    [ "$code" = 75 ] || die "$library does not exclude us: $code"
    token=$("$relatch" holder "$key" | sed -n 's/^token //p')
    printf '%-20s %-16s %-34s %s\n' "$library" "$(cut -d' ' -f2 <<<"$said")" "$key" "$("$relatch" ls | tail -1 | tr -s ' ' | cut -d' ' -f5-)"
    "$relatch" force-unlock -q "$key" --if-token "$token" || die "$library: its token $token is not accepted"
    "$relatch" run "$key" -- sleep 60 &
    local run=$!
    until "$relatch" holder "$key" >"$folder/ping"; do sleep 0.1; done
    said=$("$@" "$REDIS_URL" "$library" report 2>"$folder/err" | tail -1 || true)
    [[ $said != *" taken" ]] || die "we do not exclude $library"
    kill "$run"
    wait "$run" || true
}

if command -v python3 >/dev/null; then
    [ -d "$folder/python" ] || {
        python3 -m venv "$folder/python"
        "$folder/python/bin/pip" install -q redis==8.1.0 python-redis-lock==4.0.1 redlock-py==1.0.8 pottery==3.0.1
    }
    for library in redis python-redis-lock redlock-py pottery; do
        peer "$library" "$folder/python/bin/python" "$peers/take.py"
    done
fi
if command -v npm >/dev/null; then
    [ -d "$folder/node_modules" ] || (cd "$folder" && npm install --silent redlock@5.0.0-beta.2 ioredis@5 >ping)
    cp "$peers/take.mjs" "$folder/"
    peer node-redlock node "$folder/take.mjs"
fi
if command -v go >/dev/null; then
    (cd "$peers/go" && go build -o "$folder/take" .)
    for library in redsync redislock rueidislock; do
        peer "$library" "$folder/take"
    done
fi
if command -v mvn >/dev/null; then
    cp -r "$peers/java" "$folder/"
    (cd "$folder/java" && mvn -q compile dependency:build-classpath -Dmdep.outputFile=classpath)
    for library in shedlock spring; do
        peer "$library" java -cp "$folder/java/target/classes:$(cat "$folder/java/classpath")" Take
    done
fi
