#!/usr/bin/env bash
# The command `relatch`: cron on three machines, a wrapper that is killed, and a lock that is lost.
#
# Run it with `bash examples/run.sh command`. Everything that it starts ends with it.
set -euo pipefail
relatch=${1:?the command}
files=$(mktemp -d)
started=()
finish() {
    kill ${started[@]+"${started[@]}"} 2>/dev/null || true
    rm -rf "$files"
}
trap finish EXIT

# Waits until a command succeeds.
until_it() {
    until "$@" >/dev/null 2>&1; do sleep 0.02; done
}

printf '== what `relatch ls --watch` says meanwhile stands behind |\n'
"$relatch" ls --watch=1 > >(sed -u 's/^/    | /') &
started+=($!)

printf '== cron on three machines has the same line, and one of them runs the job\n'
cron() {
    sleep "0.$2" # As if its clock were late.
    "$relatch" run -xn nightly --at-least 3s -- echo "$1 makes the backup" || printf '%s: exit code %s\n' "$1" $?
}
cron web-1 0 &
first=$!
cron web-2 3 &
second=$!
cron web-3 6 &
wait "$first" "$second" $!
printf 'all three had the exit code 0, so nobody gets mail\n'

printf '== a wrapper is killed by kill -9: its guard ends the job, and Redis frees the lock\n'
"$relatch" run --lease 3s service -- bash -c 'echo $$ >"$1"; exec sleep 60' job "$files/job" &
wrapper=$!
started+=("$wrapper")
until_it test -s "$files/job"
job=$(cat "$files/job")
"$relatch" holder service | head -1
disown "$wrapper" # So that bash does not report how it ended.
kill -9 "$wrapper"
until_it bash -c "! kill -0 $job"
printf 'process %s, the job, is gone\n' "$job"
"$relatch" wait service
printf 'and the lock is free\n'

printf '== a lock is lost: somebody at three in the morning deletes it, and the job ends\n'
"$relatch" run deploy:prod -- sh -c 'echo "deploying"; sleep 60; echo "never said"' &
deploy=$!
started+=("$deploy")
until_it "$relatch" holder deploy:prod
"$relatch" holder deploy:prod
token=$("$relatch" holder deploy:prod | sed -n 's/^token //p')
"$relatch" force-unlock deploy:prod --if-token "$token"
code=0
wait "$deploy" || code=$?
printf 'the exit code of the run is %s\n' "$code"
