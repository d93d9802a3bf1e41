# shellcheck shell=bash
# examples/run.sh and the scripts in tests source this file. It provides cargo and a Redis server.
#
# examples/run.sh and the tests start servers of their own. They never use a Redis that is running
# already, such as the service that some packages start at their installation.

say() { printf '== %s\n' "$*"; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

have_server() { have redis-server || have valkey-server; }

# limited <seconds> <command>...: runs the command. When the time is over, ends the command and its
# children, and returns 124 or 137.
limited() {
    have timeout || die 'the command timeout is not on the PATH: install coreutils'
    timeout -k 10 "$@"
}

# show_failures: passes on the output of `cargo test`, and says at once which test failed and how to
# run it alone. (The output of that test comes when all tests have run: libtest keeps it until
# then.)
show_failures() {
    local line test
    while IFS= read -r line || [ -n "$line" ]; do
        printf '%s\n' "$line"
        case $line in
            'test '*' ... FAILED')
                test=${line#test }
                test=${test% ... FAILED}
                test=${test% - should panic}
                printf '== FAILED: %s\n   To run only this test:  cargo test --locked --workspace %q\n' "$test" "$test"
                ;;
        esac
    done
}

need_cargo() {
    have cargo || export PATH="$PATH:${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
    have cargo && return
    local hint='install Rust from https://rustup.rs'
    [ -z "${SUDO_USER:-}" ] || hint="start this as $SUDO_USER, without sudo (it calls sudo where it has to), or $hint"
    die "cargo is not on the PATH: $hint"
}

need_server() {
    export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
    need have_server 'a Redis server' redis-server
}

# A test has the metrics read by Prometheus's client for Python. Debian's package is for the Python
# in /usr/bin.
have_prometheus() {
    local python
    for python in /usr/bin/python3 python3; do
        "$python" -c 'import prometheus_client' 2>/dev/null && return
    done
    return 1
}

need_prometheus() { need have_prometheus "Prometheus's client for Python" prometheus-client; }

# need <command that says whether it is there> <what it is> <the name that `packages` knows>
need() {
    local is_there=$1 what=$2 name=$3 manager
    "$is_there" && return
    for manager in apt-get dnf yum apk pacman zypper brew ''; do
        [ -n "$manager" ] && have "$manager" && break
    done
    [ -n "$manager" ] || die "$what is missing, and no package manager that is known is there: install one of: $(packages '' "$name")"
    local -a as_root=()
    if [ "$manager" != brew ] && [ "$(id -u)" -ne 0 ]; then
        have sudo || die "$what is missing, and neither root nor sudo to install it: install one of these with $manager: $(packages "$manager" "$name")"
        as_root=(sudo)
    fi
    say "installing $what with $manager, which is needed once"
    install_one "$manager" "$name" ${as_root[@]+"${as_root[@]}"} || true
    hash -r
    "$is_there" || die "$manager did not install $what (see above): install one of: $(packages "$manager" "$name")"
}

# install_one <manager> <name> [sudo]: tries several packages, because their names differ.
install_one() {
    local manager=$1 name=$2 package
    shift 2
    [ "$manager" != apt-get ] || "$@" apt-get update -qq || true
    for package in $(packages "$manager" "$name"); do
        case $manager in
            apt-get)
                "$@" env DEBIAN_FRONTEND=noninteractive \
                    apt-get install -qq -y --no-install-recommends "$package" >/dev/null
                ;;
            dnf | yum) "$@" "$manager" install -q -y "$package" ;;
            apk) "$@" apk add --quiet --no-cache "$package" ;;
            pacman) "$@" pacman -Sy --noconfirm --needed --quiet "$package" ;;
            zypper) "$@" zypper --quiet --non-interactive install "$package" ;;
            brew) brew install --quiet "$package" ;;
        esac && return
    done
    return 1
}

packages() {
    case $2/$1 in
        redis-server/apt-get | redis-server/) echo redis-server valkey-server ;;
        redis-server/*) echo redis valkey ;;
        prometheus-client/apk) echo py3-prometheus-client ;;
        prometheus-client/pacman) echo python-prometheus_client ;;
        *) echo python3-prometheus-client python3-prometheus_client ;;
    esac
}
