import csv
import datetime
import re
import sqlite3
import unittest
from pathlib import Path


def expected():
    customers, orders, rejects, seen = {}, {}, [], set()
    with open("/tests/customers.csv", encoding="utf-8-sig", newline="") as file:
        rows = [[value.strip() for value in row] for row in csv.reader(file)][1:]
    for number, name, email in rows:
        customers[int(number)] = (name, email.lower())
    with open("/tests/orders.csv", encoding="utf-8", newline="") as file:
        rows = [[value.strip() for value in row] for row in csv.reader(file, delimiter=";")][1:]
    for number, customer, placed, amount, note in rows:
        reason = ""
        day, cents = date(placed), money(amount)
        if not number.isdigit():
            reason = "bad id"
        elif number in seen:
            reason = "duplicate"
        elif not customer.isdigit() or int(customer) not in customers:
            reason = "unknown customer"
        elif day is None:
            reason = "bad date"
        elif not cents:
            reason = "bad amount"
        seen.add(number)
        if reason:
            rejects.append([number, reason])
        else:
            orders[int(number)] = (int(customer), day, cents, note or None)
    return customers, orders, rejects


def date(text):
    for pattern, order in ((r"(\d{4})-(\d\d)-(\d\d)", (1, 2, 3)), (r"(\d\d)\.(\d\d)\.(\d{4})", (3, 2, 1))):
        match = re.fullmatch(pattern, text)
        if match:
            try:
                return datetime.date(*(int(match[i]) for i in order)).isoformat()
            except ValueError:
                return None
    return None


def money(text):
    match = re.fullmatch(r"(?:EUR\s*)?(\d{1,3}(?:,\d{3})*|\d+)\.(\d\d)", text)
    return int(match[1].replace(",", "") + match[2]) if match else None


CUSTOMERS, ORDERS, REJECTS = expected()


class Shop(unittest.TestCase):
    def setUp(self):
        self.assertTrue(Path("/app/shop.db").is_file(), "no /app/shop.db")
        self.db = sqlite3.connect("file:/app/shop.db?mode=ro", uri=True)
        self.addCleanup(self.db.close)

    def test_customers(self):
        found = {row[0]: row[1:] for row in self.db.execute("SELECT id, name, email FROM customers")}
        self.assertEqual(found, CUSTOMERS)

    def test_orders(self):
        found = {row[0]: row[1:] for row in self.db.execute("SELECT id, customer_id, placed, cents, note FROM orders")}
        self.assertEqual(found, ORDERS)

    def test_types(self):
        kinds = self.db.execute("SELECT DISTINCT typeof(id), typeof(customer_id), typeof(cents) FROM orders").fetchall()
        self.assertEqual(kinds, [("integer", "integer", "integer")])

    def test_schema(self):
        columns = [row[1:4] for row in self.db.execute("PRAGMA table_info(orders)")]
        self.assertEqual(
            [(name, kind.upper(), notnull) for name, kind, notnull in columns],
            [
                ("id", "INTEGER", 0),
                ("customer_id", "INTEGER", 1),
                ("placed", "TEXT", 1),
                ("cents", "INTEGER", 1),
                ("note", "TEXT", 0),
            ],
        )
        keys = [row[2:5] for row in self.db.execute("PRAGMA foreign_key_list(orders)")]
        self.assertEqual(keys, [("customers", "customer_id", "id")])

    def test_rejects(self):
        with open("/app/rejects.csv", encoding="utf-8", newline="") as file:
            self.assertEqual(list(csv.reader(file)), [["order_id", "reason"], *REJECTS])

    def test_revenue(self):
        found = {row[0]: row[1:] for row in self.db.execute("SELECT customer_id, orders, cents FROM revenue")}
        wanted = dict.fromkeys(CUSTOMERS, (0, 0))
        for customer, _, cents, _ in ORDERS.values():
            count, total = wanted[customer]
            wanted[customer] = (count + 1, total + cents)
        self.assertEqual(found, wanted)


unittest.main(verbosity=2)
