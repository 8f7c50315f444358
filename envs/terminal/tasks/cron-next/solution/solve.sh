#!/bin/sh
set -eu
cat > /app/cronnext.py <<'PY'
"""The next minutes at which a cron expression holds."""

import datetime
import re
import sys

MONTHS = {name: i for i, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
DAYS = {name: i for i, name in enumerate("sun mon tue wed thu fri sat".split())}
FIELDS = [(0, 59, {}), (0, 23, {}), (1, 31, {}), (1, 12, MONTHS), (0, 7, DAYS)]
SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}


def number(text, names):
    if text.lower() in names:
        return names[text.lower()]
    if not re.fullmatch(r"[0-9]+", text):
        raise ValueError(f"not a number: {text!r}")
    return int(text)


def field(text, low, high, names):
    values = set()
    for item in text.split(","):
        span, slash, step = item.partition("/")
        step = number(step, {}) if slash else 1
        if step < 1:
            raise ValueError("a step of zero")
        if span == "*":
            first, last = low, high
        elif "-" in span:
            first, _, last = span.partition("-")
            first, last = number(first, names), number(last, names)
        else:
            first = number(span, names)
            last = high if slash else first
        if not low <= first <= last <= high:
            raise ValueError(f"out of range: {item!r}")
        values.update(range(first, last + 1, step))
    return values


def parse(expression):
    parts = SHORT.get(expression, expression).split()
    if len(parts) != 5:
        raise ValueError("an expression has five fields")
    sets = [field(part, *limits) for part, limits in zip(parts, FIELDS)]
    sets[4] = {day % 7 for day in sets[4]}
    either = not parts[2].startswith("*") and not parts[4].startswith("*")
    return sets, either


def times(expression, after):
    (minutes, hours, days, months, weekdays), either = parse(expression)
    day = after.date()
    # Every combination of weekday and leap year recurs within 40 years, even across a century without a leap day.
    for _ in range(40 * 366):
        in_month, in_week = day.day in days, day.isoweekday() % 7 in weekdays
        if day.month in months and (in_month or in_week if either else in_month and in_week):
            for hour in sorted(hours):
                for minute in sorted(minutes):
                    moment = datetime.datetime.combine(day, datetime.time(hour, minute))
                    if moment > after:
                        yield moment
        day += datetime.timedelta(days=1)


def main(arguments):
    try:
        expression, after, count = arguments
        after = datetime.datetime.strptime(after, "%Y-%m-%d %H:%M")
        count = number(count, {})
        if count < 1:
            raise ValueError("a count of zero")
        parse(expression)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    found = []
    while len(found) < count:
        for moment in times(expression, found[-1] if found else after):
            found.append(moment)
            if len(found) == count:
                break
        else:
            if not found:
                print("never", file=sys.stderr)
                return 3
    print("\n".join(moment.strftime("%Y-%m-%d %H:%M") for moment in found))
    return 0


sys.exit(main(sys.argv[1:]))
PY
