#!/bin/sh
# A verdict is written whatever the agent left behind.
mkdir -p /logs/verifier
reward=0
python3 -I -B /tests/check.py && reward=1
echo "$reward" > /logs/verifier/reward.txt
