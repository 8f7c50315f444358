"""Many environments as one, on real hosts: Gymnasium's lockstep with its three ways to reset, and rows in any order."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import little
import numpy as np
import pytest
from executor.conftest import PLUGINS, WITH_PLUGINS
from gymnasium.vector import AutoresetMode
from requirements import check

import rayroll
from rayroll import RolloutVectorEnv
from rayroll.errors import CallerError, ClosedError, ConfigError
from rayroll.substrates import _leftovers as leftovers

SOLVE = "echo 42 > answer.txt"

Opened = Callable[..., Any]


@pytest.fixture
def opened(ray_cluster: Any) -> Opened:
    """Opens vector environments on the session's Ray."""
    check("local")

    @contextmanager
    def opened(num_envs: int = 3, **options: Any) -> Iterator[RolloutVectorEnv]:
        options = {"tasks": [little.task()], "substrate_config": little.SUBSTRATE_CONFIG["local"]} | options
        env = RolloutVectorEnv(num_envs, **options)
        try:
            yield env
        finally:
            env.close()

    return opened


# --- what a step says ---


def test_rows_are_those_of_single_environments(opened: Opened) -> None:
    with opened() as envs:
        observations, infos = envs.reset(seed=3)
        assert observations == ("Write 42 into answer.txt.",) * 3
        assert infos["task"].tolist() == ["little/write"] * 3
        observations, rewards, terminations, truncations, infos = envs.step(["echo a", "echo b; exit 4", SOLVE])
        assert observations == ("a\n", "b\n", "")
        assert (rewards.tolist(), terminations.any(), truncations.any()) == ([0.0] * 3, False, False)
        assert infos["exit_code"].tolist() == [0, 4, 0]
        assert (infos["timing_s"]["run"] > 0).all()
        _, rewards, terminations, truncations, infos = envs.step(["true", "submit", " submit "])
        assert (rewards.tolist(), terminations.tolist(), truncations.any()) == ([0, 0, 1], [False, True, True], False)
        assert infos["_episode"].tolist() == [False, True, True]
        assert infos["episode"]["r"].tolist() == [0.0, 0.0, 1.0]
        assert infos["episode"]["l"].tolist() == [0, 2, 2]
        assert infos["rollout"][2].reward == 1.0 and infos["rollout"][0] is None
        assert infos["valid"].tolist() == [True, True, True]


def test_equal_seeds_choose_the_tasks_of_single_environments(opened: Opened) -> None:
    tasks = [little.task(name) for name in "abcdefgh"]
    with opened(tasks=tasks) as envs, rayroll.CodingEnv(tasks=tasks) as single:
        _, infos = envs.reset(seed=11)
        assert [single.reset(seed=11 + row)[1]["task"] for row in range(3)] == infos["task"].tolist()


def test_the_last_observation_of_an_episode_that_a_limit_ends_is_shown(opened: Opened) -> None:
    with opened(2, max_steps=1) as envs:
        envs.reset()
        observations, rewards, terminations, truncations, _ = envs.step([f"{SOLVE}; echo done", "echo nothing"])
    assert observations == ("done\n", "nothing\n")
    assert (rewards.tolist(), terminations.any(), truncations.all()) == ([1.0, 0.0], False, True)


def test_render_shows_each_episode_as_a_terminal_would(opened: Opened) -> None:
    with opened(2, render_mode="ansi") as envs:
        envs.reset()
        envs.step(["echo a", "echo b"])
        assert envs.render() == tuple(f"Write 42 into answer.txt.\n$ echo {x}\n{x}\n" for x in "ab")


# --- resetting ---


def test_with_next_step_the_action_after_an_episode_is_ignored(opened: Opened) -> None:
    with opened(2) as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        envs.reset()
        envs.step(["submit", "true"])
        observations, rewards, terminations, _, infos = envs.step(["exit 9", "echo on"])
        assert observations == ("Write 42 into answer.txt.", "on\n")
        assert (rewards.tolist(), terminations.any()) == ([0.0, 0.0], False)
        assert infos["_task"].tolist() == [True, False]
        assert envs.step(["echo new", "echo on"])[0] == ("new\n", "on\n")


def test_with_same_step_the_end_of_an_episode_brings_the_next_beginning(opened: Opened) -> None:
    with opened(2, max_steps=1, autoreset_mode="SameStep") as envs:
        envs.reset()
        observations, rewards, _, truncations, infos = envs.step([SOLVE + "; echo last", "echo last"])
        assert observations == ("Write 42 into answer.txt.",) * 2
        assert (rewards.tolist(), truncations.all()) == ([1.0, 0.0], True)
        assert infos["final_obs"].tolist() == ["last\n", "last\n"]
        assert infos["final_info"]["episode"]["r"].tolist() == [1.0, 0.0]
        assert infos["episode"]["r"].tolist() == [1.0, 0.0]
        assert envs.step(["echo a", SOLVE])[1].tolist() == [0.0, 1.0]


def test_without_autoreset_the_caller_resets_the_rows_it_names(opened: Opened) -> None:
    with opened(2, autoreset_mode=AutoresetMode.DISABLED) as envs:
        envs.reset()
        _, _, terminations, _, _ = envs.step(["submit", "true"])
        with pytest.raises(gym.error.ResetNeeded, match="env 0"):
            envs.step(["true", "true"])
        observations, infos = envs.reset(options={"reset_mask": terminations})
        assert (observations, infos["_task"].tolist()) == (("Write 42 into answer.txt.", ""), [True, False])
        assert envs.step(["echo a", "echo b"])[0] == ("a\n", "b\n")


def test_a_reset_gives_up_what_is_under_way(opened: Opened) -> None:
    with opened(2) as envs:
        envs.reset()
        envs.send(["sleep 60", "echo left behind"], [0, 1])
        envs.reset()
        assert envs.step(["echo a", "echo b"])[0] == ("a\n", "b\n")


@pytest.mark.parametrize("mask", [[True, False], np.array([1, 0]), np.array([True]), np.array([False, False])], ids=str)
def test_a_mask_that_is_none_is_refused(opened: Opened, mask: Any) -> None:
    with opened(2) as envs, pytest.raises(ConfigError, match="reset_mask"):
        envs.reset(options={"reset_mask": mask})


# --- in any order ---


def test_rows_come_back_in_the_order_in_which_they_finish(opened: Opened) -> None:
    with opened() as envs:
        envs.reset()
        envs.step(["true"] * 3)
        envs.send(["sleep 1; echo slow", "sleep 0.3; echo middle", "echo quick"], [0, 1, 2])
        first = envs.recv()
        envs.send(["echo again"], first.env_ids)
        rest = envs.recv(min_batch=3)
        assert (first.env_ids.tolist(), first.observations) == ([2], ("quick\n",))
        assert (rest.env_ids.tolist(), rest.observations) == ([2, 1, 0], ("again\n", "middle\n", "slow\n"))
        assert rest.infos["exit_code"].shape == (3,)


def test_recv_returns_what_there_is_when_its_time_is_up(opened: Opened) -> None:
    with opened(2) as envs:
        envs.reset()
        envs.send(["sleep 60", "sleep 60"], [0, 1])
        batch = envs.recv(min_batch=2, timeout_s=0.0)
    assert (batch.observations, batch.rewards.shape) == ((), (0,))


def test_recv_returns_no_more_than_was_asked_for(opened: Opened) -> None:
    with opened() as envs:
        envs.reset()
        envs.send(["true"] * 3, [0, 1, 2])
        assert len(envs.recv(min_batch=2, max_batch=2).env_ids) == 2
        assert len(envs.recv(min_batch=2, max_batch=2).env_ids) == 1


@pytest.mark.parametrize(
    ("send", "error"),
    [
        ((["true"], [7]), CallerError),
        ((["true", "true"], [0]), CallerError),
        ((["true", "true"], [0, 0]), CallerError),
        (([b"true"], [0]), CallerError),
    ],
    ids=["no such env", "one too many", "twice", "bytes"],
)
def test_what_cannot_be_sent_is_refused(opened: Opened, send: Any, error: Any) -> None:
    with opened(2) as envs:
        envs.reset()
        with pytest.raises(error):
            envs.send(*send)
        assert envs.step(["echo a", "echo b"])[0] == ("a\n", "b\n")


def test_a_row_at_work_takes_no_second_action(opened: Opened) -> None:
    with opened(1) as envs:
        with pytest.raises(gym.error.ResetNeeded):
            envs.send(["true"], [0])
        envs.reset()
        with pytest.raises(CallerError, match="no env is at work"):
            envs.recv()
        envs.send(["true"], [0])
        with pytest.raises(CallerError, match="still at work"):
            envs.send(["true"], [0])


# --- what fails ---


def test_a_row_whose_sandbox_the_machine_lost_has_no_reward_and_the_others_go_on(opened: Opened) -> None:
    run_id = secrets.token_hex(6)
    with opened(2, executor={"run_id": run_id}) as envs:
        envs.reset()
        envs.step(["true", "true"])
        os.kill(next(iter(leftovers.find(leftovers.base_dir(), {"run": run_id}))).pid, signal.SIGKILL)
        _, rewards, terminations, truncations, infos = envs.step([SOLVE, SOLVE])
        assert (truncations == np.isnan(rewards)).all() and (truncations.sum(), terminations.any()) == (1, False)
        (lost,) = np.flatnonzero(truncations)
        assert (infos["valid"][lost], infos["failure"]["fault"][lost]) == (False, "infra")
        rewards = envs.step(["submit", "submit"])[1]
        assert (rewards[lost], rewards[1 - lost]) == (0.0, 1.0)
        assert envs.step([SOLVE, SOLVE])[1].tolist() == [0.0, 0.0]


def test_a_start_that_fails_is_made_again_behind_the_first_action(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PLUGINS)
    failing = {"inner": "local", "inner_config": little.SUBSTRATE_CONFIG["local"], "creates_that_fail": 1}
    with opened(1, substrate="disturbed", substrate_config=failing, executor={"actor_options": WITH_PLUGINS}) as envs:
        envs.reset()
        assert envs.step(["echo first"])[0] == ("first\n",)


def test_after_close_everything_is_refused_and_closing_again_is_nothing(opened: Opened) -> None:
    with opened(1) as envs:
        envs.reset()
        envs.close()
        with pytest.raises(ClosedError):
            envs.step(["true"])
        with pytest.raises(ClosedError):
            envs.reset()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"autoreset_mode": "NextStp"}, "NextStep"),
        ({"grade_on": "ends"}, "end"),
        ({"pack": "helo_shell"}, "hello_shell"),
        ({"tasks": []}, "no task"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_anything_starts(options: Any, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        RolloutVectorEnv(**options)


# --- by Gymnasium's own doors ---


@pytest.mark.parametrize("mode", [mode.value for mode in AutoresetMode])
def test_gymnasium_makes_one_and_its_recorder_of_episodes_works_on_it(ray_cluster: Any, mode: str) -> None:
    check("local")
    made = gym.make_vec("rayroll/HelloShell-v0", num_envs=2, max_steps=2, autoreset_mode=mode, episode_info=False)
    envs = gym.wrappers.vector.RecordEpisodeStatistics(made)
    try:
        envs.reset(seed=0)
        returns = []
        for _ in range(3):
            _, _, terminations, truncations, infos = envs.step(["true", "submit"])
            over = terminations | truncations
            returns += infos["episode"]["r"][over].tolist() if over.any() else []
            if mode == "Disabled" and over.any():
                envs.reset(options={"reset_mask": over})
        assert len(returns) >= 2
        assert made.observation_space.contains(envs.reset()[0])
        assert made.spec is not None and made.spec.id == "rayroll/HelloShell-v0"
    finally:
        envs.close()


def test_make_vec_is_short_for_that(ray_cluster: Any) -> None:
    check("local")
    with rayroll.make_vec("rayroll/Tasks-v0", 2, pack="hello_shell") as envs:
        assert envs.num_envs == 2 and isinstance(envs.unwrapped, RolloutVectorEnv)
