# Shared by the scripts beside it: where things are, what is said, what gets installed.
# Sourced, never run. Everything that is downloaded or built for tests stays under .cache/.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/.cache
target=${CARGO_TARGET_DIR:-$root/target}

# pip and npm would otherwise keep their downloads in the home directory.
export PIP_CACHE_DIR=$cache/pip PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
export npm_config_cache=$cache/npm npm_config_fund=false npm_config_audit=false
export npm_config_update_notifier=false

say() { printf '%s\n' "$(basename "$0"): $*" >&2; }
die() { say "$*"; exit 1; }

# need COMMAND PACKAGE...: installs Debian packages when the command is missing and we are root.
need() {
    local command=$1
    shift
    command -v "$command" >/dev/null 2>&1 && return
    [ -x "/usr/sbin/$command" ] && return
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        die "$command is missing; install it (Debian: $*) and run this again"
    fi
    say "installing $*"
    DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" </dev/null >&2
}

# need_cargo_tool NAME: makes `cargo NAME` available, built once into .cache/tools where missing.
need_cargo_tool() {
    export PATH=$cache/tools/bin:$PATH
    command -v "cargo-$1" >/dev/null 2>&1 && return
    say "building cargo-$1 (once, into .cache/tools)"
    # Unoptimised: it runs for seconds, so build time is what counts.
    CARGO_TARGET_DIR=$cache/tools/build cargo install --quiet --locked --debug \
        --root "$cache/tools" "cargo-$1" </dev/null >&2
    rm -rf "$cache/tools/build"
}

# python_environment FOLDER REQUIREMENTS: a virtual environment that holds exactly these pins.
# Made once; made anew when the pins change or an earlier try did not finish.
python_environment() {
    local folder=$1 requirements=$2 mark
    mark=$folder/complete-$(sha256sum <"$requirements" | cut -c1-16)
    [ -e "$mark" ] && return
    need python3 python3 python3-venv
    say "installing $(basename "$(dirname "$requirements")")/$(basename "$requirements") (once)"
    rm -rf "$folder"
    if ! python3 -m venv "$folder" >/dev/null 2>&1; then
        # Debian ships venv apart from python3.
        [ "$(id -u)" = 0 ] || die "python3 cannot make virtual environments; install python3-venv"
        DEBIAN_FRONTEND=noninteractive apt-get update -qq </dev/null >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv </dev/null >&2
        rm -rf "$folder"
        python3 -m venv "$folder"
    fi
    "$folder/bin/pip" install --quiet --requirement "$requirements" </dev/null >&2
    touch "$mark"
}

# free_ports N: prints so many loopback ports that were free a moment ago.
free_ports() {
    python3 - "$1" <<'PY'
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))
PY
}

# answers URL: whether a GET is answered with 200.
answers() {
    python3 - "$1" <<'PY'
import sys, urllib.error, urllib.request
try:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    sys.exit(opener.open(sys.argv[1], timeout=2).status != 200)
except OSError:
    sys.exit(1)
PY
}

# wait_for SECONDS URL PID LOG: waits until URL answers; fails early when the process has ended.
wait_for() {
    local seconds=$1 url=$2 pid=$3 log=$4 end
    end=$((SECONDS + seconds))
    until answers "$url"; do
        if ! kill -0 "$pid" 2>/dev/null; then
            tail -n 40 "$log" >&2
            die "the process for $url has ended (above: the end of $log)"
        fi
        if [ $SECONDS -ge $end ]; then
            tail -n 40 "$log" >&2
            die "$url does not answer after $seconds s (above: the end of $log)"
        fi
        sleep 0.2
    done
}
