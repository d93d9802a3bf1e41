# shellcheck shell=bash
# examples/run.sh sources this file. It starts the Redis servers of the examples, on 127.0.0.1, and
# ends them with the script.

folder=$(mktemp -d)
started=()
finish() {
    local process
    for process in ${started[@]+"${started[@]}"}; do
        kill "$process" 2>/dev/null || continue
        kill -CONT "$process" 2>/dev/null || true # If it was to be silent.
        while kill -0 "$process" 2>/dev/null; do sleep 0.02; done
    done
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 130' INT TERM

# The examples take and delete locks. A server that the caller has set would see that.
unset RELATCH_URL REDIS_URL

# Starts a server, and sets REDIS_URL to it. (A socket in a new folder needs no free port.)
need_redis() {
    [ -z "${REDIS_URL:-}" ] || return 0
    find_programs
    launch one --port 0 --unixsocket "$folder/socket"
    until_it test -S "$folder/socket"
    export REDIS_URL=unix://$folder/socket
}

find_programs() {
    need_server
    server_program=$(command -v redis-server || command -v valkey-server)
    cli=$(command -v redis-cli || command -v valkey-cli) || die 'redis-cli is not on the PATH'
}

# launch <name> [option]...: starts a server, and sets `server` to its process. Its folder and its
# log have the name.
launch() {
    local name=$1
    shift
    mkdir -p "$folder/$name"
    # If the locale that is set is not installed, the server would not start.
    (cd "$folder/$name" && LC_ALL=C exec "$server_program" "$@" --repl-diskless-sync-delay 0 --save '' --dir "$folder/$name") >"$folder/$name.log" 2>&1 &
    server=$!
    started+=("$server")
    disown "$server" # So that bash does not report how it ended.
}

# launch_at_a_port <name> [option]...: the same, with a free port, to which it sets `port`. The
# options may have PORT for it.
launch_at_a_port() {
    local name=$1 attempt
    shift
    # A cluster's node has a second port, ten thousand above. Both are below those that the system
    # gives away.
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        port=$((10000 + RANDOM % 10000))
        launch "$name" "${@//PORT/$port}"
        until_it answers_or_ends
        kill -0 "$server" 2>/dev/null && return
    done
    die "$name did not start: $(cat "$folder/$name.log")"
}

answers_or_ends() {
    ! kill -0 "$server" 2>/dev/null || grep -qE 'eady to accept connections|monitor master' "$folder/$name.log"
}

# beside <command>...: runs it beside this script, and sets `beside` to its process.
beside() {
    "$@" &
    beside=$!
    started+=("$beside")
}

# until_it <command>...: waits until it succeeds.
until_it() {
    local attempt
    for attempt in $(seq 1200); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.05
    done
    die "this never came true: $*"
}

# over_tls <program>: runs it with a server that speaks TLS only, and asks for a client certificate;
# with an authority of our own.
over_tls() {
    find_programs
    have openssl || die 'openssl is not on the PATH: it makes the certificates'
    openssl req -x509 -newkey rsa:2048 -nodes -subj '/CN=our authority' -addext basicConstraints=critical,CA:TRUE \
        -days 2 -keyout "$folder/ca.key" -out "$folder/ca.pem" 2>/dev/null
    certificate server localhost
    certificate client client
    launch_at_a_port tls --port 0 --tls-port PORT --tls-cert-file "$folder/server.pem" \
        --tls-key-file "$folder/server.key" --tls-ca-cert-file "$folder/ca.pem" --tls-auth-clients yes
    REDIS_URL=rediss://localhost:$port/ REDIS_CA=$folder/ca.pem REDIS_CERT=$folder/client.pem \
        REDIS_KEY=$folder/client.key "$1"
}

# certificate <file> <name>
certificate() {
    local file=$folder/$1
    openssl req -newkey rsa:2048 -nodes -subj "/CN=$2" -keyout "$file.key" -out "$file.request" 2>/dev/null
    echo "subjectAltName=DNS:$2" >"$file.extensions"
    openssl x509 -req -in "$file.request" -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -CAcreateserial \
        -days 2 -extfile "$file.extensions" -out "$file.pem" 2>/dev/null
}

# by_sentinel <program>: runs it with a master, two replicas and three sentinels, and kills the
# master.
by_sentinel() {
    find_programs
    local master name sentinels='' master_process
    launch_at_a_port master --port PORT
    master=$port master_process=$server
    for name in replica-1 replica-2; do
        launch_at_a_port "$name" --port PORT --replicaof 127.0.0.1 "$master"
    done
    for name in 1 2 3; do
        mkdir -p "$folder/sentinel-$name"
        printf 'sentinel %s\n' "monitor mymaster 127.0.0.1 $master 2" 'down-after-milliseconds mymaster 1000' \
            'failover-timeout mymaster 10000' >"$folder/sentinel-$name/sentinel.conf"
        launch_at_a_port "sentinel-$name" "$folder/sentinel-$name/sentinel.conf" --sentinel --port PORT
        sentinels+=,127.0.0.1:$port
    done
    sees() { "$cli" -p "$port" sentinel master mymaster | paste -s -d ' ' - | grep "num-slaves 2 num-other-sentinels 2"; }
    until_it sees
    until_it has_replicas "$master" 2
    REDIS_URL=redis+sentinel://${sentinels#,}/mymaster REPLICAS=1 beside "$1" 10
    sleep 3
    say "after 3 s, the master 127.0.0.1:$master is killed"
    kill -9 "$master_process"
    is_replaced() { ! "$cli" -p "$port" sentinel get-master-addr-by-name mymaster | grep -qx "$master"; }
    until_it is_replaced
    say "the sentinels have made 127.0.0.1:$("$cli" -p "$port" sentinel get-master-addr-by-name mymaster | tail -1) the master"
    wait "$beside"
}

# in_a_cluster <program>: runs it with three masters that have a replica each, and kills the master
# that has the lock.
in_a_cluster() {
    find_programs
    local n nodes='' slot master
    for n in 1 2 3 4 5 6; do
        launch_node $n
        nodes+=" 127.0.0.1:$port"
    done
    # shellcheck disable=SC2086 # Several words.
    "$cli" --cluster create $nodes --cluster-replicas 1 --cluster-yes >"$folder/create.log" || die "$(cat "$folder/create.log")"
    slot=$("$cli" -p "$port" cluster keyslot lock:till)
    until_it owner "$slot"
    master=$(owner "$slot")
    until_it has_replicas "$master" 1
    REDIS_URL=redis+cluster://${nodes##* } REPLICAS=1 beside "$1" 10
    sleep 3
    say "after 3 s, the master 127.0.0.1:$master is killed"
    kill -9 "$(cat "$folder"/*/"$master.pid")"
    is_replaced() { owner "$slot" | grep -vqx "$master"; }
    until_it is_replaced
    say "its replica 127.0.0.1:$(owner "$slot") is the master now; no lock before it has a replica itself"
    n=$(dirname "$folder"/*/"$master.pid")
    launch "${n##*/}" --port "$master" --cluster-enabled yes --cluster-node-timeout 1000
    say "127.0.0.1:$master comes back, as a replica"
    wait "$beside"
}

launch_node() {
    launch_at_a_port "node-$1" --port PORT --cluster-enabled yes --cluster-node-timeout 1000
    echo "$server" >"$folder/node-$1/$port.pid"
}

# owner <slot>: the port of the master that has it, as the last node that was started says.
owner() {
    "$cli" -p "$port" cluster nodes | awk -v slot="$1" '/master/ && !/fail/ {
        for (i = 9; i <= NF; i++) {
            split($i, range, "-")
            if (slot >= range[1] + 0 && slot <= (range[2] == "" ? range[1] : range[2]) + 0) {
                split($2, address, /[:@]/); print address[2]; found = 1
            }
        }
    } END { exit !found }'
}

# has_replicas <port> <count>: whether as many acknowledge what the master writes.
has_replicas() { [ "$("$cli" -p "$1" info replication | grep -c 'state=online')" -eq "$2" ]; }
