#!/usr/bin/env bash
# Counts the instructions of a lock + unlock, and of a plain connection with the same commands.
set -euo pipefail
cd "$(dirname "$0")/.."

case "${1:-}" in
"") ;;
-h | --help)
    echo "usage: bash benches/instructions.sh"
    echo
    echo "Prints how many instructions the client executes per cycle, uncontended, and the ratio:"
    echo "  a plain connection of the redis crate that sends SET NX PX and EVALSHA,"
    echo "  a lock + unlock, which sends the same,"
    echo "  the same with a fencing token, and in a cluster."
    echo "Needs valgrind (apt-get install valgrind), redis-server and cargo. Installs nothing."
    exit 0
    ;;
*)
    echo "unknown argument: $1 (see --help)" >&2
    exit 2
    ;;
esac

for tool in valgrind redis-server; do
    if ! command -v "$tool" >/dev/null; then
        echo "$tool is not installed: apt-get install $tool" >&2
        exit 1
    fi
done
exec cargo bench --locked --bench instructions
