import unittest

from spanset import ParseError, format_spans, parse_spans


class TestParse(unittest.TestCase):
    def test_single_number(self):
        self.assertEqual(parse_spans("7"), [(7, 8)])

    def test_range_is_closed_in_text(self):
        self.assertEqual(parse_spans("1-3"), [(1, 4)])

    def test_items_keep_their_order(self):
        self.assertEqual(parse_spans("9, 1-2"), [(9, 10), (1, 3)])

    def test_blanks_are_allowed(self):
        self.assertEqual(parse_spans("  1 - 3 , 5 "), [(1, 4), (5, 6)])

    def test_empty_text(self):
        self.assertEqual(parse_spans("   "), [])

    def test_negative_numbers(self):
        self.assertEqual(parse_spans("-3--1"), [(-3, 0)])

    def test_a_range_of_one(self):
        self.assertEqual(parse_spans("4-4"), [(4, 5)])

    def test_step(self):
        self.assertEqual(parse_spans("10-15/2"), [(10, 11), (12, 13), (14, 15)])

    def test_step_reaches_the_last_number(self):
        self.assertEqual(parse_spans("0-4/4"), [(0, 1), (4, 5)])

    def test_step_of_one_is_one_span(self):
        self.assertEqual(parse_spans("1-5/1"), [(1, 6)])

    def test_limit_cuts(self):
        self.assertEqual(parse_spans("1-9", limit=5), [(1, 5)])

    def test_limit_leaves_what_is_below(self):
        self.assertEqual(parse_spans("1-4", limit=5), [(1, 5)])

    def test_limit_drops_what_is_above(self):
        self.assertEqual(parse_spans("7,9-12", limit=7), [])

    def test_limit_with_step(self):
        self.assertEqual(parse_spans("0-10/3", limit=6), [(0, 1), (3, 4)])


class TestParseErrors(unittest.TestCase):
    def test_not_a_number(self):
        with self.assertRaises(ParseError) as caught:
            parse_spans("1-3,x")
        self.assertEqual(caught.exception.position, 4)

    def test_position_of_a_later_item(self):
        with self.assertRaises(ParseError) as caught:
            parse_spans("1,22,333,?")
        self.assertEqual(caught.exception.position, 9)

    def test_backwards(self):
        with self.assertRaisesRegex(ParseError, "backwards"):
            parse_spans("5-3")

    def test_step_of_zero(self):
        with self.assertRaisesRegex(ParseError, "step of zero"):
            parse_spans("1-5/0")

    def test_trailing_comma(self):
        with self.assertRaisesRegex(ParseError, "expected a number"):
            parse_spans("1,")


class TestFormat(unittest.TestCase):
    def test_single_numbers_have_no_dash(self):
        self.assertEqual(format_spans([(1, 2), (5, 6)]), "1,5")

    def test_ranges_are_closed(self):
        self.assertEqual(format_spans([(1, 4)]), "1-3")

    def test_two_numbers_are_a_range(self):
        self.assertEqual(format_spans([(1, 3)]), "1-2")

    def test_separator_and_dash(self):
        self.assertEqual(format_spans([(1, 4), (9, 10)], separator="; ", dash=".."), "1..3; 9")

    def test_nothing(self):
        self.assertEqual(format_spans([]), "")
