"""Which rollout starts where and when, and what becomes of it: a state, one event, the exact commands."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rayroll.scheduler import (
    Asked,
    AttemptId,
    Cancelled,
    Command,
    Cool,
    Ended,
    Event,
    Expire,
    Fetch,
    Fetched,
    HostDown,
    HostReport,
    HostUp,
    Needs,
    Paused,
    Reached,
    Resumed,
    RunClosed,
    RunOpened,
    Scheduler,
    SchedulerConfig,
    Settle,
    Spares,
    Start,
    Started,
    Stop,
    Taken,
    Tick,
    Warm,
    Warmed,
)


class Play:
    """A scheduler, and what it said to one event after the other."""

    def __init__(self, *hosts: HostUp, **config: Any) -> None:
        self.scheduler = Scheduler(SchedulerConfig.parse(config))
        self.now_s = 0.0
        for host in hosts or (HostUp("h"),):
            self.tell(host)

    def tell(self, *events: Event) -> list[Command]:
        return [command for event in events for command in self.scheduler.handle(event, now_s=self.now_s)]

    def open(self, run: str = "run", *, most: int = 100, retries: int = 0, spares: Spares = "never") -> Play:
        self.tell(RunOpened(run, most, retries, spares))
        return self

    def ask(
        self, *rollouts: str, run: str = "run", needs: Needs | None = None, group: str | None = None
    ) -> list[Command]:
        return self.tell(*(Asked(rollout, run, needs or Needs(), group) for rollout in rollouts))

    def after(self, seconds: float) -> list[Command]:
        """Time passes, without anything else."""
        end_s, commands = self.now_s + seconds, []
        while self.scheduler.next_wake_s < end_s:
            self.now_s = max(self.now_s, self.scheduler.next_wake_s)
            commands += self.tell(Tick())
        self.now_s = end_s
        return commands + self.tell(Tick())

    def start_ten(self) -> None:
        """So that it is known what starts take: 0.1 s."""
        self.open("others")
        for number in range(10):
            self.ask(f"o{number}", run="others")
            self.tell(Started(id(f"o{number}"), 0.1), Ended(id(f"o{number}"), "done"))


def id(rollout: str, number: int = 1) -> AttemptId:
    return AttemptId(rollout, number)


def start(rollout: str, host: str = "h", number: int = 1, *, is_warm: bool = False) -> Start:
    return Start(id(rollout, number), host, is_warm)


# --- who starts ---


def test_a_rollout_starts_when_it_is_asked_for_and_settles_when_it_is_done() -> None:
    play = Play().open()
    assert play.ask("a") == [start("a")]
    assert play.tell(Started(id("a"), 0.1)) == []
    assert play.tell(Ended(id("a"), "done")) == [Settle("a", id("a"))]


def test_no_more_start_at_the_same_time_than_the_limit_says() -> None:
    play = Play(starts={"first": 2}).open()
    assert play.ask("a", "b", "c") == [start("a"), start("b")]
    assert play.tell(Started(id("a"), 0.1)) == [start("c")]


def test_no_more_run_than_there_are_slots() -> None:
    play = Play(HostUp("h", slots=1)).open()
    assert play.ask("a", "b") == [start("a")]
    assert play.tell(Started(id("a"), 0.1)) == []
    assert play.tell(Ended(id("a"), "done")) == [Settle("a", id("a")), start("b")]


def test_no_more_are_in_flight_than_the_run_allows() -> None:
    play = Play().open(most=1)
    assert play.ask("a", "b") == [start("a")]
    assert play.tell(Ended(id("a"), "done")) == [Settle("a", id("a")), start("b")]


def test_a_reader_that_takes_nothing_holds_its_run_back() -> None:
    play = Play().open(most=1)
    play.ask("a", "b", "c")
    play.tell(Ended(id("a"), "done"))
    assert play.tell(Ended(id("b"), "done")) == [Settle("b", id("b"))]
    assert play.tell(Taken("run")) == [start("c")]


def test_a_paused_run_begins_nothing_until_it_is_resumed() -> None:
    play = Play().open()
    play.tell(Paused("run"))
    assert play.ask("a") == []
    assert play.tell(Resumed("run")) == [start("a")]


def test_a_later_run_does_not_wait_for_an_earlier_one_to_end() -> None:
    play = Play(HostUp("h", slots=2)).open("first").open("second")
    play.ask("a", "b", "c", run="first")
    play.ask("x", run="second")
    assert play.tell(Ended(id("a"), "done")) == [Settle("a", id("a")), start("x")]


def test_forty_lines_that_cannot_be_placed_do_not_hold_up_the_next() -> None:
    play = Play().open()
    for number in range(40):
        play.ask(f"r{number}", needs=Needs(shape=str(number), labels=frozenset({("gpu", "yes")})))
    assert play.ask("fits") == []
    assert play.after(0.1) == [start("fits")]


# --- where ---


def test_the_emptiest_host_is_taken() -> None:
    play = Play(HostUp("a", slots=4), HostUp("b", slots=4)).open()
    assert play.ask("r", "s") == [start("r", "a"), start("s", "b")]


def test_a_host_that_has_the_image_is_taken_before_an_emptier_one() -> None:
    play = Play(HostUp("a"), HostUp("b", images=frozenset({"i"}))).open()
    needs = Needs(image="i")
    assert play.ask("r", "s", needs=needs) == [start("r", "b"), start("s", "b")]


def test_an_image_is_brought_to_a_host_by_one_rollout_and_the_others_wait_for_it() -> None:
    play = Play().open()
    assert play.ask("r", "s", needs=Needs(image="i")) == [start("r")]
    assert play.tell(Started(id("r"), 0.1)) == [start("s")]


def test_labels_memory_and_disk_decide_who_suits() -> None:
    play = Play(HostUp("a", labels={"zone": "x"}, memory_mib=100), HostUp("b", disk_mib=100)).open()
    zone = frozenset({("zone", "x")})
    assert play.ask("r", needs=Needs(labels=zone, memory_mib=60)) == [start("r", "a")]
    assert play.ask("s", needs=Needs(labels=zone, memory_mib=60)) == []
    assert play.ask("t", needs=Needs(disk_mib=100)) == [start("t", "b")]


@pytest.mark.parametrize("report", [{"free_memory_mib": 10}, {"free_disk_mib": 10}, {"pressure": 0.9}])
def test_a_host_that_is_short_of_something_starts_nothing_until_it_is_not(report: dict[str, Any]) -> None:
    play = Play().open()
    play.tell(HostReport("h", **report))
    assert play.ask("a") == []
    assert play.tell(HostReport("h")) == [start("a")]


def test_what_a_host_said_before_it_was_lost_is_forgotten() -> None:
    play = Play().open()
    play.tell(HostReport("h", pressure=0.9), HostDown("h"))
    play.ask("a")
    assert play.tell(HostUp("h")) == [start("a")]


def test_a_host_that_rests_starts_again_when_it_has_rested() -> None:
    play = Play().open(retries=1)
    play.ask("a")
    assert play.tell(Ended(id("a"), "spoilt", retry_after_s=3.0)) == []
    assert play.after(2.9) == []
    assert play.after(0.2) == [start("a", number=2)]


# --- when something fails ---


def test_what_the_machine_spoilt_is_tried_again_elsewhere_and_as_often_as_allowed() -> None:
    play = Play(HostUp("a"), HostUp("b")).open(retries=1)
    play.ask("r")
    assert play.tell(Ended(id("r"), "spoilt")) == [start("r", "b", 2)]
    assert play.tell(Ended(id("r", 2), "spoilt")) == [Settle("r", id("r", 2))]


def test_where_there_is_no_elsewhere_it_is_tried_where_it_failed() -> None:
    play = Play().open(retries=1)
    play.ask("r")
    assert play.tell(Ended(id("r"), "spoilt")) == [start("r", number=2)]


def test_one_that_is_tried_again_goes_before_those_that_wait() -> None:
    play = Play(HostUp("h", slots=1)).open(retries=1)
    play.ask("a", "b")
    assert play.tell(Ended(id("a"), "spoilt")) == [start("a", number=2)]


def test_a_start_that_its_provider_put_off_is_no_try() -> None:
    play = Play().open(retries=0)
    play.ask("a")
    for number in range(1, 21):
        assert play.tell(Ended(id("a", number), "spoilt", retry_after_s=1.0)) == []
        assert play.after(1.1) == [start("a", number=number + 1)]
    assert play.tell(Ended(id("a", 21), "spoilt", retry_after_s=1.0)) == [Settle("a", id("a", 21))]


def test_a_host_on_which_nothing_starts_is_left_alone_for_a_while() -> None:
    play = Play(starts={"strikes": 3, "rest_s": 5.0}).open()
    play.ask("a", "b", "c")
    play.tell(*(Ended(id(rollout), "spoilt") for rollout in "abc"))
    assert play.ask("d") == []
    assert play.after(4.8) == []
    assert play.after(0.3) == [start("d")]


def test_messages_about_what_is_over_are_ignored() -> None:
    play = Play().open()
    play.ask("a")
    play.tell(Ended(id("a"), "done"))
    late = [Started(id("a"), 0.1), Reached(id("a"), "exec", 1.0), Ended(id("a"), "spoilt"), Cancelled(("a",))]
    assert play.tell(*late, HostDown("nobody"), HostReport("nobody"), Taken("nobody"), RunClosed("nobody")) == []
    assert play.scheduler.next_wake_s == math.inf


# --- when nobody can take it ---


def test_a_rollout_that_no_host_could_ever_take_is_given_up_with_the_reason() -> None:
    play = Play(patience_s=10.0).open()
    play.ask("a", needs=Needs(memory_mib=5, labels=frozenset({("gpu", "yes")})))
    assert play.after(9.9) == []
    reason = "no host can take it: it needs labels gpu=yes; 5 MiB memory, 0 MiB disk"
    assert play.after(0.3) == [Settle("a", None, reason)]


def test_a_rollout_is_given_up_where_every_host_is_short_although_it_runs_nothing() -> None:
    play = Play(HostUp("h", slots=1), patience_s=10.0).open()
    play.tell(HostReport("h", free_memory_mib=300))
    play.ask("a")
    reason = "no host can take it: h is short of memory: 300 MiB are free, 512 are to stay so"
    assert play.after(9.9) == []
    assert play.scheduler.snapshot().hosts["h"]["short_of"] == "memory: 300 MiB are free, 512 are to stay so"
    assert play.after(0.3) == [Settle("a", None, reason)]


def test_a_host_that_is_short_of_what_its_own_rollouts_use_is_waited_for() -> None:
    play = Play(HostUp("h", slots=2), patience_s=10.0).open()
    play.ask("a")
    play.tell(HostReport("h", free_disk_mib=10))
    play.ask("b")
    assert play.after(100.0) == []
    play.tell(Ended(id("a"), "done"))
    assert play.tell(HostReport("h", free_disk_mib=5000)) == [start("b")]


def test_patience_begins_anew_when_a_host_has_come_and_gone() -> None:
    play = Play(HostUp("h", slots=1), patience_s=10.0).open()
    play.tell(HostDown("h"))
    play.ask("a")
    play.after(6.0)
    assert play.tell(HostUp("h")) == [start("a")]
    play.tell(HostDown("h"))
    play.ask("b")
    assert play.after(6.0) == []
    assert play.after(5.0) == [Settle("b", None, "no host is up")]


def test_a_paused_run_loses_no_patience() -> None:
    play = Play(patience_s=10.0).open()
    play.tell(HostDown("h"), Paused("run"))
    play.ask("a")
    assert play.after(100.0) == []


# --- when it is no longer wanted ---


def test_cancelling_stops_what_runs_and_drops_what_waits() -> None:
    play = Play(HostUp("h", slots=1)).open()
    play.ask("a", "b")
    assert play.tell(Cancelled(("a", "b"))) == [Stop(id("a"), "cancelled"), Settle("b", None, "cancelled")]
    assert play.tell(Ended(id("a"), "stopped")) == [Settle("a", id("a"))]


def test_one_cancelled_between_two_tries_settles_with_the_one_it_had() -> None:
    play = Play(HostUp("h", slots=1)).open(retries=1)
    play.ask("a")
    play.tell(Paused("run"), Ended(id("a"), "spoilt"))
    assert play.tell(Cancelled(("a",))) == [Settle("a", id("a"), "cancelled")]


def test_closing_a_run_stops_what_it_has_and_nobody_hears_of_it_any_more() -> None:
    play = Play(HostUp("h", slots=1)).open()
    play.ask("a", "b")
    assert play.tell(RunClosed("run")) == [Stop(id("a"), "cancelled")]
    assert play.tell(RunClosed("run")) == []
    assert play.ask("c") == []
    assert play.tell(Ended(id("a"), "stopped")) == []
    assert play.open().ask("d") == [start("d")]


# --- deadlines ---


def test_what_takes_too_long_is_told_then_stopped_then_given_up_and_tried_again() -> None:
    play = Play(HostUp("h", slots=1), grace_s=5.0).open(retries=1)
    play.ask("a")
    play.tell(Reached(id("a"), "exec", within_s=10.0))
    assert play.after(9.9) == []
    assert play.after(0.1) == [Expire(id("a"), "exec")]
    assert play.after(5.0) == [Stop(id("a"), "stuck")]
    assert play.after(5.0) == [start("a", number=2)]


def test_one_that_was_stuck_has_failed_even_where_it_heeds_the_stop() -> None:
    play = Play(grace_s=5.0).open(retries=1)
    play.ask("a")
    play.tell(Reached(id("a"), "start", within_s=1.0))
    play.after(6.0)
    assert play.tell(Ended(id("a"), "stopped")) == [start("a", number=2)]


def test_a_verdict_that_crosses_with_the_stop_counts() -> None:
    play = Play(grace_s=5.0).open()
    play.ask("a")
    play.tell(Reached(id("a"), "grade", within_s=1.0))
    assert play.after(6.0) == [Expire(id("a"), "grade"), Stop(id("a"), "stuck")]
    assert play.tell(Ended(id("a"), "done")) == [Settle("a", id("a"))]


def test_only_a_policy_is_told_that_the_rollout_is_out_of_time() -> None:
    play = Play().open()
    play.ask("a")
    play.tell(Reached(id("a"), "policy", within_s=60.0, rollout_within_s=10.0))
    play.tell(Reached(id("a"), "exec", within_s=20.0))
    assert play.after(15.0) == []
    assert play.tell(Reached(id("a"), "policy", within_s=60.0)) == [Expire(id("a"), "rollout")]


def test_a_slot_that_a_deadline_frees_is_taken_at_once_whatever_event_it_was_noticed_by() -> None:
    play = Play(HostUp("h", slots=2), grace_s=0.01).open()
    play.ask("a", "b", "c")
    play.tell(Reached(id("a"), "exec", within_s=0.01))
    for _ in range(2):
        play.now_s += 0.01
        play.tell(Tick())
    play.now_s += 0.01
    assert play.tell(Reached(id("b"), "exec", 9.0)) == [Settle("a", id("a")), start("c")]


# --- spares ---


def test_a_late_start_gets_a_spare_and_the_first_that_is_up_is_played() -> None:
    play = Play(HostUp("a"), HostUp("b"))
    play.start_ten()
    play.open(spares="start")
    play.ask("r")
    assert play.after(0.9) == []
    assert play.after(0.2) == [start("r", "b", 2)]
    assert play.tell(Started(id("r", 2), 0.1)) == [Stop(id("r"), "overtaken")]
    assert play.tell(Ended(id("r"), "stopped"), Ended(id("r", 2), "done")) == [Settle("r", id("r", 2))]


def test_a_spare_that_fails_is_not_replaced_by_another() -> None:
    play = Play(HostUp("a"), HostUp("b"))
    play.start_ten()
    play.open(spares="start", retries=1)
    play.ask("r")
    play.after(1.1)
    assert play.tell(Ended(id("r", 2), "spoilt")) == []
    assert play.after(10.0) == []
    assert play.tell(Ended(id("r"), "done")) == [Settle("r", id("r"))]


def test_one_that_spoils_after_it_overtook_the_other_is_tried_again() -> None:
    play = Play(HostUp("a"), HostUp("b"))
    play.start_ten()
    play.open(spares="start", retries=1)
    play.ask("r")
    play.after(1.1)
    play.tell(Started(id("r", 2), 0.1))
    assert play.tell(Ended(id("r", 2), "spoilt")) == []
    assert play.tell(Ended(id("r"), "stopped")) == [start("r", "a", 3)]


def test_one_that_starts_while_it_is_stopped_overtakes_nobody() -> None:
    play = Play(HostUp("a"), HostUp("b"), grace_s=0.5)
    play.start_ten()
    play.open(spares="start")
    play.ask("r")
    play.tell(Reached(id("r"), "start", within_s=1.0))
    assert play.after(1.6) == [Expire(id("r"), "start"), start("r", "b", 2), Stop(id("r"), "stuck")]
    assert play.tell(Started(id("r"), 1.6), Ended(id("r"), "stopped")) == []
    assert play.tell(Ended(id("r", 2), "done")) == [Settle("r", id("r", 2))]


def test_the_last_of_a_group_gets_a_spare_even_when_nothing_else_happens() -> None:
    play = Play(HostUp("a"), HostUp("b")).open(spares="group")
    play.ask("r", "s", group="g")
    play.tell(Started(id("r"), 0.1), Started(id("s"), 0.1))
    play.now_s = 10.0
    play.tell(Ended(id("r"), "done"))
    assert play.after(9.0) == []
    assert play.after(1.5) == [start("s", "a", 2)]
    assert play.tell(Ended(id("s", 2), "done")) == [Stop(id("s"), "overtaken"), Settle("s", id("s", 2))]


def test_how_long_a_cancelled_member_took_says_nothing_about_the_others() -> None:
    play = Play(HostUp("a"), HostUp("b")).open(spares="group")
    play.ask("r", "s", group="g")
    play.tell(Cancelled(("r",)), Ended(id("r"), "stopped"))
    assert play.after(60.0) == []


# --- ahead of need ---


def test_an_image_that_waits_for_a_slot_is_fetched_meanwhile() -> None:
    play = Play(HostUp("h", slots=1)).open()
    play.ask("a")
    play.ask("b", needs=Needs(image="i"))
    assert play.after(0.2) == [Fetch("h", "i")]
    play.tell(Fetched("h", "i", True))
    assert play.tell(Ended(id("a"), "done")) == [Settle("a", id("a")), start("b")]
    assert play.after(60.0) == []


def test_an_image_that_cannot_be_fetched_is_left_to_the_rollout_that_needs_it() -> None:
    play = Play(HostUp("h", slots=1)).open()
    play.ask("a")
    play.ask("b", needs=Needs(image="typo"))
    assert play.after(0.2) == [Fetch("h", "typo")]
    play.tell(Fetched("h", "typo", False))
    assert play.after(60.0) == []
    assert play.tell(Ended(id("a"), "done")) == [Settle("a", id("a")), start("b")]


def test_a_host_without_room_for_images_ahead_is_asked_again_after_a_while() -> None:
    play = Play(HostUp("h", slots=1)).open()
    play.ask("a")
    play.ask("b", needs=Needs(image="i"))
    assert play.after(0.2) == [Fetch("h", "i")]
    play.tell(Fetched("h", "i", False, is_put_off=True))
    assert play.after(4.0) == []
    assert play.after(2.0) == [Fetch("h", "i")]


def warmed() -> Play:
    """One slot, taken; one sandbox of shape s warm for the next; its host has room for both and no more."""
    play = Play(HostUp("h", slots=1, memory_mib=200), warm={"most_per_host": 1}).open()
    play.ask("a", needs=Needs(shape="s", memory_mib=100))
    play.tell(Started(id("a"), 0.1))
    play.ask("b", needs=Needs(shape="s", memory_mib=100))
    assert play.after(0.2) == [Warm("h", "s")]
    play.tell(Warmed("h", "s", 0.1))
    return play


def test_a_warm_sandbox_is_handed_out_and_the_rate_of_hits_is_kept() -> None:
    play = warmed()
    assert play.tell(Ended(id("a"), "done")) == [Settle("a", id("a")), start("b", is_warm=True)]
    play.tell(Started(id("b"), 0.0, was_warm=True))
    snapshot = play.scheduler.snapshot()
    assert (snapshot.warm_hits, snapshot.warm_misses) == (1, 1)


def test_a_warm_sandbox_that_was_found_dead_is_a_miss() -> None:
    play = warmed()
    play.tell(Ended(id("a"), "done"), Started(id("b"), 0.4, was_warm=False))
    assert play.scheduler.snapshot().warm_misses == 2


def test_a_warm_sandbox_that_nobody_will_want_is_taken_down_even_when_nothing_else_happens() -> None:
    play = warmed()
    play.tell(Cancelled(("b",)))
    assert play.after(0.2) == [Cool("h", "s")]


def test_a_warm_sandbox_gives_back_what_was_promised_to_it_whoever_gets_it() -> None:
    play = warmed()
    play.tell(Cancelled(("b",)))
    play.ask("c", needs=Needs(shape="s", memory_mib=50))
    play.tell(Ended(id("a"), "done"))
    play.tell(Ended(id("c"), "done"))
    assert [host.declared_memory_mib for host in play.scheduler._hosts] == [0]


def test_a_warm_sandbox_goes_to_the_next_of_its_shape_before_the_first_of_another() -> None:
    play = warmed()
    play.tell(Paused("run"))
    play.open("urgent")
    play.ask("c", "d", run="urgent", needs=Needs(shape="s", memory_mib=100))
    play.tell(Resumed("run"), Cancelled(("b",)))
    assert play.tell(Ended(id("a"), "done")) == [Settle("a", id("a")), start("c", is_warm=True)]


def test_a_sandbox_that_was_made_clean_serves_the_next_of_its_shape_before_others() -> None:
    play = Play(HostUp("h", slots=1)).open()
    play.ask("a", needs=Needs(shape="s"))
    play.ask("other", needs=Needs(shape="t"))
    play.ask("b", needs=Needs(shape="s"))
    assert play.tell(Ended(id("a"), "done", is_warm=True)) == [Settle("a", id("a")), start("b", is_warm=True)]
    assert play.tell(Ended(id("b"), "done")) == [Settle("b", id("b")), start("other")]


def test_warm_sandboxes_are_gone_with_their_host() -> None:
    play = warmed()
    play.tell(HostDown("h"), Ended(id("a"), "spoilt"))
    assert play.tell(HostUp("h", slots=1, memory_mib=200)) == [start("b")]
    assert play.tell(Warmed("h", "s", 0.1)) == []


# --- being woken ---


def test_it_wants_to_be_woken_only_where_something_may_become_late() -> None:
    play = Play().open()
    assert play.scheduler.next_wake_s == math.inf
    play.ask("a")
    play.tell(Started(id("a"), 0.1), Reached(id("a"), "policy", 9.0))
    assert play.scheduler.next_wake_s == 9.0
    play.tell(Ended(id("a"), "done"))
    play.now_s = 9.0
    play.tell(Tick())
    assert play.scheduler.next_wake_s == math.inf
