#!/bin/sh
# ctl.sh start|stop|status
. /app/config.ini
case $1 in
start)
    python3 /app/server.py $host $port
    echo $! > /app/server.pid
    ;;
stop)
    kill -9 `cat /app/server.pid`
    ;;
status)
    [ -f /app/server.pid ] && echo running || echo stopped
    ;;
esac
