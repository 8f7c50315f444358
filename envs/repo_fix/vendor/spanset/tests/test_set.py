import unittest

from spanset import SpanSet

S = SpanSet.parse


class TestMaking(unittest.TestCase):
    def test_spans_are_sorted(self):
        self.assertEqual(SpanSet([(7, 9), (1, 2)]).spans(), [(1, 2), (7, 9)])

    def test_overlapping_spans_are_one(self):
        self.assertEqual(SpanSet([(1, 5), (3, 8)]).spans(), [(1, 8)])

    def test_touching_spans_are_one(self):
        self.assertEqual(SpanSet([(1, 3), (3, 5)]).spans(), [(1, 5)])

    def test_a_span_inside_another(self):
        self.assertEqual(SpanSet([(1, 9), (2, 3)]).spans(), [(1, 9)])

    def test_empty_spans_are_left_out(self):
        self.assertEqual(SpanSet([(4, 4), (9, 2)]).spans(), [])

    def test_of_numbers(self):
        self.assertEqual(SpanSet.of([3, 1, 2, 9]).spans(), [(1, 4), (9, 10)])

    def test_parse_with_limit(self):
        self.assertEqual(str(SpanSet.parse("1-9", 4)), "1-3")


class TestReading(unittest.TestCase):
    def test_iteration_is_sorted(self):
        self.assertEqual(list(S("7,1-3")), [1, 2, 3, 7])

    def test_length(self):
        self.assertEqual(len(S("1-3,7")), 4)

    def test_truth(self):
        self.assertFalse(SpanSet())
        self.assertTrue(S("0"))

    def test_contains_the_ends(self):
        numbers = S("3-5,9")
        self.assertEqual([n for n in range(12) if n in numbers], [3, 4, 5, 9])

    def test_equality_and_hash(self):
        self.assertEqual(S("1-2,3"), S("1-3"))
        self.assertEqual(hash(S("1-2,3")), hash(S("1-3")))
        self.assertNotEqual(S("1-3"), S("1-4"))

    def test_not_equal_to_other_things(self):
        self.assertNotEqual(S("1"), "1")

    def test_text_round_trip(self):
        self.assertEqual(repr(S("1-3, 7")), "SpanSet.parse('1-3,7')")

    def test_bounds(self):
        self.assertEqual(S("3-5,9").bounds(), (3, 10))
        self.assertIsNone(SpanSet().bounds())

    def test_nth(self):
        self.assertEqual([S("3-5,9").nth(i) for i in range(4)], [3, 4, 5, 9])

    def test_nth_from_the_end(self):
        self.assertEqual([S("3-5,9").nth(i) for i in (-1, -4)], [9, 3])

    def test_nth_outside(self):
        for place in (4, -5):
            with self.assertRaises(IndexError):
                S("3-5,9").nth(place)

    def test_nearest(self):
        numbers = S("10-12,20")
        self.assertEqual([numbers.nearest(n) for n in (0, 11, 14, 18, 99)], [10, 11, 12, 20, 20])

    def test_nearest_prefers_the_lower_of_two(self):
        self.assertEqual(S("1,5").nearest(3), 1)

    def test_nearest_of_nothing(self):
        self.assertIsNone(SpanSet().nearest(1))


class TestAlgebra(unittest.TestCase):
    def test_union(self):
        self.assertEqual(str(S("1-3") | S("4,8")), "1-4,8")

    def test_intersection(self):
        self.assertEqual(str(S("1-5,8-9") & S("4-8")), "4-5,8")

    def test_intersection_of_neighbours_is_empty(self):
        self.assertEqual(S("1-3") & S("4-6"), SpanSet())

    def test_intersection_with_many_small_spans(self):
        self.assertEqual(str(S("1-10") & S("0,2,4-5,10-12")), "2,4-5,10")

    def test_intersection_is_symmetric(self):
        self.assertEqual(S("1-2,6-7") & S("2-6"), S("2-6") & S("1-2,6-7"))

    def test_difference_in_the_middle(self):
        self.assertEqual(str(S("1-9") - S("4-5")), "1-3,6-9")

    def test_difference_at_the_ends(self):
        self.assertEqual(str(S("1-9") - S("0-2,9-12")), "3-8")

    def test_difference_over_several_spans(self):
        self.assertEqual(str(S("1-3,6-9") - S("3-6")), "1-2,7-9")

    def test_difference_with_something_beside(self):
        self.assertEqual(str(S("5-6") - S("1,9")), "5-6")

    def test_symmetric_difference(self):
        self.assertEqual(str(S("1-4") ^ S("3-6")), "1-2,5-6")

    def test_disjoint(self):
        self.assertTrue(S("1-3").isdisjoint(S("4")))
        self.assertFalse(S("1-3").isdisjoint(S("3")))

    def test_subset(self):
        self.assertTrue(S("2,4").issubset(S("1-4")))
        self.assertFalse(S("2,5").issubset(S("1-4")))


class TestChanging(unittest.TestCase):
    def test_gaps_within_its_bounds(self):
        self.assertEqual(str(S("1-3,7,10-12").gaps()), "4-6,8-9")

    def test_gaps_within_given_bounds(self):
        self.assertEqual(str(S("3-5").gaps(0, 8)), "0-2,6-7")

    def test_gaps_of_nothing(self):
        self.assertEqual(str(SpanSet().gaps(1, 4)), "1-3")
        self.assertEqual(SpanSet().gaps(), SpanSet())

    def test_shift(self):
        self.assertEqual(str(S("1-3,7").shift(-1)), "0-2,6")

    def test_grow(self):
        self.assertEqual(str(S("3-4,9").grow(1)), "2-5,8-10")

    def test_grow_joins_neighbours(self):
        self.assertEqual(str(S("3,6").grow(1)), "2-7")

    def test_shrink_drops_what_is_too_short(self):
        self.assertEqual(str(S("3-5,9").grow(-1)), "4")

    def test_chunks(self):
        self.assertEqual([str(c) for c in S("1-7").chunks(3)], ["1-3", "4-6", "7"])

    def test_chunks_across_spans(self):
        self.assertEqual([str(c) for c in S("1-2,5-8").chunks(3)], ["1-2,5", "6-8"])

    def test_chunks_of_nothing(self):
        self.assertEqual(list(SpanSet().chunks(2)), [])

    def test_chunks_need_a_size(self):
        with self.assertRaises(ValueError):
            list(S("1").chunks(0))
