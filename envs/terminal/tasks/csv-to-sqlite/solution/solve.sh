#!/bin/sh
set -eu
python3 - <<'PY'
import csv, re, sqlite3
from datetime import datetime

db = sqlite3.connect("/app/shop.db")
db.executescript("""
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL UNIQUE);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    placed TEXT NOT NULL,
    cents INTEGER NOT NULL CHECK (cents > 0),
    note TEXT
);
CREATE VIEW revenue (customer_id, orders, cents) AS
    SELECT c.id, count(o.id), coalesce(sum(o.cents), 0) FROM customers c LEFT JOIN orders o ON o.customer_id = c.id
    GROUP BY c.id;
PRAGMA foreign_keys = ON;
""")


def rows(path, **options):
    with open(path, encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file, **options):
            yield {key.strip(): value.strip() for key, value in row.items()}


def day(text):
    for pattern, form in ((r"\d{4}-\d\d-\d\d", "%Y-%m-%d"), (r"\d\d\.\d\d\.\d{4}", "%d.%m.%Y")):
        if re.fullmatch(pattern, text):
            try:
                return datetime.strptime(text, form).strftime("%Y-%m-%d")
            except ValueError:
                return None


def money(text):
    text = text.removeprefix("EUR").strip()
    if re.fullmatch(r"(\d{1,3}(,\d{3})*|\d+)\.\d\d", text):
        return int(text.replace(",", "").replace(".", ""))


for row in rows("/app/customers.csv"):
    db.execute("INSERT INTO customers VALUES (?, ?, ?)", (int(row["id"]), row["name"], row["email"].lower()))
known = {str(number) for (number,) in db.execute("SELECT id FROM customers")}
seen, rejects = set(), []
for row in rows("/app/orders.csv", delimiter=";"):
    number, placed, cents = row["order_id"], day(row["placed"]), money(row["amount"])
    reason = (
        "bad id" if not number.isdigit()
        else "duplicate" if number in seen
        else "unknown customer" if row["customer_id"] not in known
        else "bad date" if placed is None
        else "bad amount" if not cents
        else ""
    )
    seen.add(number)
    if reason:
        rejects.append((number, reason))
    else:
        values = (int(number), int(row["customer_id"]), placed, cents, row["note"] or None)
        db.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", values)
db.commit()
with open("/app/rejects.csv", "w", encoding="utf-8", newline="") as file:
    csv.writer(file).writerows([("order_id", "reason"), *rejects])
PY
