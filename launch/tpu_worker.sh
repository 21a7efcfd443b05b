#!/usr/bin/env bash
# launch/tpu_pod.py runs this on every worker of a TPU slice, in the folder of the unpacked code.
# The run is detached, so it continues if the connection is lost; `follow` shows its log. You can repeat each
# action: gcloud retries by itself if a connection fails.
#
#   tpu_worker.sh install EXTRAS     create .venv with the tested versions and these extras, e.g. "tpu,gcs"
#   tpu_worker.sh installed EXTRAS COMMIT
#                                    end with 0 if this commit is installed with these extras, or the command is running
#   tpu_worker.sh mount SERVER:/DIR  mount a network file system at /mnt/birdie
#   tpu_worker.sh start LOGS COMMAND...
#                                    start the command, unless it is running, with its own log, which is copied to
#                                    LOGS, a folder or gs://..., every five minutes and at the end; '' for no copy
#   tpu_worker.sh follow LINES       show the log from LINES before its end (+1: all of it) to the command's end,
#                                    and end as the command ended
#   tpu_worker.sh running            end with 0 if the command is running
#   tpu_worker.sh status             print "status N" if the command has ended with N
#   tpu_worker.sh keep               copy the log to the LOGS of `start`
#   tpu_worker.sh stop SECONDS       send SIGTERM, wait for SECONDS for the command to save and end, then SIGKILL
set -euo pipefail
cd "$(dirname "$0")/.."
state=.launch
mkdir -p "$state"
export PATH="$PWD/.venv/bin:${HOME:-}/.local/bin:$PATH"

running() {
    [ -f "$state/pid" ] && kill -0 -- "-$(cat "$state/pid")" 2>/dev/null
}

# Prints the commit of the unpacked code, which git archive has written.
commit() {
    cat birdie_jax/commit.txt 2>/dev/null || true
}

start() {
    local kept=$1
    shift
    if running; then
        echo "already running"
        return 0
    fi
    rm -f "$state/status" "$state/pid" "$state/child"
    # Keep the logs of earlier starts in the same folder.
    [ ! -s "$state/log" ] || mv "$state/log" "$state/log.$(date -u -r "$state/log" +%Y%m%dT%H%M%SZ)"
    : >"$state/log"
    echo "${kept:+$kept/$HOSTNAME-$(date -u +%Y%m%dT%H%M%SZ).log}" >"$state/kept"
    if [ -f "$state/environment" ]; then
        set -a
        . "$state/environment"
        set +a
    fi
    # Start a new session. The number of its process group is the number of its first process.
    setsid bash -c '"$@" &
        child=$!
        echo "$child" >"$0/child"
        echo "$$" >"$0/pid.new" && mv "$0/pid.new" "$0/pid"
        # The keeper is not in this group, which ends when no process of the command is left.
        setsid bash -c "while sleep 300 && kill -0 $$; do bash launch/tpu_worker.sh keep; done" 2>/dev/null &
        keeper=$!
        status=0
        wait "$child" || status=$?
        # A command may end before the keeper has its own group. Until it is gone, the command counts as running.
        kill -- "-$keeper" 2>/dev/null || kill "$keeper" 2>/dev/null
        wait "$keeper" 2>/dev/null
        bash launch/tpu_worker.sh keep
        echo "$status" >"$0/status"' "$state" "$@" </dev/null >>"$state/log" 2>&1 &
    while [ ! -f "$state/status" ] && ! running; do sleep 0.1; done
}

follow() {
    tail -n "$1" --follow=name --pid="$(cat "$state/pid")" "$state/log" 2>/dev/null |
        sed -u "s/^/[$HOSTNAME] /"
    # If there is no status, the command was killed together with the shell that writes its status.
    return "$(cat "$state/status" 2>/dev/null || echo 137)"
}

stop() {
    local group
    running || return 0
    group=$(cat "$state/pid")
    # Signal only the command, because the shell that waits for it must outlive it.
    kill -TERM "$(cat "$state/child")" 2>/dev/null || true
    for ((second = 0; second < $1; second++)); do
        running || return 0
        sleep 1
    done
    kill -KILL -- "-$group" 2>/dev/null || true
    while running; do sleep 0.1; done
    keep
}

keep() {
    local kept
    kept=$(cat "$state/kept")
    case "$kept" in
    '') ;;
    gs://*) timeout 60 gcloud storage cp --quiet --no-user-output-enabled "$state/log" "$kept" ;;
    *) mkdir -p "$(dirname "$kept")" && cp "$state/log" "$kept" ;;
    esac || echo "tpu_worker.sh: the log could not be copied to $kept" >&2
}

action=$1
shift
case "$action" in
install)
    # TPU VMs have an older Python than this project needs; uv provides a newer one.
    command -v uv >/dev/null || python3 -m pip install --quiet --user uv
    if ! .venv/bin/python -c '' 2>/dev/null; then
        # There is no .venv, or an incomplete one.
        rm -rf .venv
        uv venv --quiet --python=3.11 .venv
    fi
    . launch/environment.sh
    install_packages "$1" uv pip install --quiet --python=.venv/bin/python
    echo "$1 $(commit)" >"$state/installed"
    ;;
mount)
    if ! mountpoint --quiet /mnt/birdie; then
        sudo apt-get install --yes --quiet=2 nfs-common
        sudo mkdir -p /mnt/birdie
        sudo mount -t nfs -o nolock,hard -- "$1" /mnt/birdie
        sudo chmod a+rwx /mnt/birdie
    fi
    ;;
installed)
    if running; then
        [ "$(commit)" = "$2" ] || echo "runs commit $(commit), not $2; \`stop\` lets the next train send it"
        exit 0
    fi
    # An installation with the extra for buckets also serves a command that does not need it.
    installed=$(cat "$state/installed" 2>/dev/null || true)
    [ "$installed" = "$1 $2" ] || [ "$installed" = "$1,gcs $2" ]
    ;;
running) running ;;
status) [ ! -f "$state/status" ] || echo "status $(cat "$state/status")" ;;
keep) keep ;;
start) start "$@" ;;
follow) follow "$1" ;;
stop) stop "$1" ;;
*)
    echo "tpu_worker.sh: unknown action '$action'" >&2
    exit 2
    ;;
esac
