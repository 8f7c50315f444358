#!/bin/sh
# What PID 1 of a sandbox does, for the stand-in of execd beside it: start execd, run the sandbox's own command, end with it.
/opt/opensandbox/execd &
execd=$!
end() {
    kill "-$1" "$command" "$execd" 2>/dev/null
}
trap 'end TERM' TERM
trap 'end INT' INT
"$@" &
command=$!
wait "$command"
status=$?
kill "$execd" 2>/dev/null
wait "$execd" 2>/dev/null
exit "$status"
