#!/bin/sh
# Enters the sandbox as /tests/test.sh, together with everything else in this folder, only when the agent is done. Its
# verdict is the number in /logs/verifier/reward.txt. No such file means no verdict, and the task is set aside as broken,
# so write one whatever the agent did.
mkdir -p /logs/verifier
if diff /tests/expected.txt /app/greetings.txt; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
