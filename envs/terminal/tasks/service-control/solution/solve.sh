#!/bin/sh
set -eu
cat > /app/ctl.sh <<'SCRIPT'
#!/bin/sh
# ctl.sh start|stop|status|restart
set -u
pid_file=/app/server.pid

setting() {
    sed -n "s/^[[:space:]]*$1[[:space:]]*=[[:space:]]*\([^#]*[^#[:space:]]\)[[:space:]]*\(#.*\)\{0,1\}\$/\1/p" /app/config.ini | tail -n 1
}

# Whether a process is there and has not ended already.
alive() {
    case $(cut -d')' -f2 "/proc/$1/stat" 2>/dev/null) in '' | ' Z'*) return 1 ;; esac
}

# The process id of the running server; fails when the pid file is not about a server that runs.
running() {
    pid=$(cat "$pid_file" 2>/dev/null) || return 1
    case $pid in '' | *[!0-9]*) return 1 ;; esac
    alive "$pid" || return 1
    tr '\0' '\n' < "/proc/$pid/cmdline" 2>/dev/null | grep -qx /app/server.py || return 1
    echo "$pid"
}

answers() {
    python3 - "$1" "$2" "$3" <<'PY' 2>/dev/null
import sys, urllib.request
url = "http://%s:%s/" % (sys.argv[1], sys.argv[2])
sys.exit(urllib.request.urlopen(url, timeout=2).read().decode().strip() != sys.argv[3])
PY
}

start() {
    if running >/dev/null; then
        echo "already running"
        return 0
    fi
    host=$(setting host) port=$(setting port)
    nohup python3 /app/server.py "$host" "$port" </dev/null >/app/server.log 2>&1 &
    child=$!
    deadline=$(($(date +%s) + 30))
    # Not "running": until the child has become python3, its command line is still this script's.
    while alive "$child" && [ "$(date +%s)" -lt "$deadline" ]; do
        if answers "$host" "$port" "$child"; then
            echo "$child" > "$pid_file"
            return 0
        fi
        sleep 0.1
    done
    kill -9 "$child" 2>/dev/null
    rm -f "$pid_file"
    echo "ctl.sh: the server did not start, see /app/server.log" >&2
    return 1
}

stop() {
    if pid=$(running); then
        kill "$pid"
        deadline=$(($(date +%s) + 5))
        while running >/dev/null; do
            [ "$(date +%s)" -gt "$deadline" ] && kill -9 "$pid"
            sleep 0.1
        done
    fi
    rm -f "$pid_file"
}

status() {
    if pid=$(running); then
        echo "running $pid"
    else
        echo stopped
        return 3
    fi
}

case ${1-} in
    start | stop | status) "$1" ;;
    restart) stop && start ;;
    *)
        echo "usage: ctl.sh start|stop|status|restart" >&2
        exit 2
        ;;
esac
SCRIPT
chmod 755 /app/ctl.sh
