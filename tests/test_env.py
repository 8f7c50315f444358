"""The Gymnasium environment: its contract as Gymnasium checks it, and what an episode is worth when things go wrong."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import little
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics
from requirements import check

from rayroll.env import CodingEnv
from rayroll.errors import CallerError, ConfigError, GraderError, InfraFailure, SandboxLostError
from rayroll.spaces import UnicodeText
from rayroll.sync import portal
from rayroll.tasks import load_pack
from rayroll.types import Task

LOCAL: dict[str, Any] = {"substrate_config": {"rootfs": "host"}}
IDS = {"rayroll/Tasks-v0": {"pack": "hello_shell"}, "rayroll/HelloShell-v0": {}, "rayroll/Terminal-v0": {}}


@pytest.fixture(scope="module", autouse=True)
def blocking_door() -> None:
    """Its thread lasts as long as the process, so it is no leak of the test that opens it first."""
    portal()


@pytest.fixture(autouse=True)
def no_sandbox_is_left() -> Iterator[None]:
    check("local")
    yield
    assert little.left_of_this_process() == []


@pytest.fixture
def env() -> Iterator[CodingEnv]:
    env = CodingEnv(tasks=[little.task("a"), little.task("b")], **LOCAL)
    yield env
    env.close()


# --- Gymnasium's contract ---


@pytest.mark.parametrize("id", [*IDS, "rayroll/RepoFix-v0"])
def test_every_registered_id_passes_gymnasium_s_own_check(id: str) -> None:
    options = IDS.get(id, {}) | LOCAL
    if id == "rayroll/RepoFix-v0":
        options |= {"tasks": repo_fix_without_network()}
        id, options["pack"] = "rayroll/Tasks-v0", None
    with warnings.catch_warnings():
        # Its two about plain spaces and np.random are for environments with arrays.
        warnings.filterwarnings("ignore", category=UserWarning, module="gymnasium")
        env = gym.make(id, disable_env_checker=True, **options)
        check_env(env.unwrapped, skip_render_check=False)
        env.close()


def repo_fix_without_network() -> list[Task]:
    """The registered pack, less what its users' own pip has to fetch first."""
    tasks = [task for task in load_pack("repo_fix").tasks if task.id.startswith("repo_fix/spanset")]
    assert tasks
    return tasks


def test_it_passes_the_check_in_a_container() -> None:
    check("docker")
    env = gym.make("rayroll/Tasks-v0", tasks=[little.task()], substrate="docker", disable_env_checker=True)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


def test_a_spec_travels_as_json_and_makes_the_same_environment() -> None:
    made = gym.make("rayroll/Tasks-v0", pack="hello_shell", max_steps=7, **LOCAL)
    spec = EnvSpec.from_json(made.spec.to_json())  # type: ignore[union-attr]
    again = spec.make()
    assert json.loads(spec.to_json())["kwargs"]["max_steps"] == 7
    assert again.unwrapped._choice.tasks == made.unwrapped._choice.tasks  # type: ignore[attr-defined]
    for env in (made, again):
        env.close()


def test_the_registration_works_by_the_module_s_name() -> None:
    env = gym.make("rayroll:rayroll/HelloShell-v0", **LOCAL)
    assert isinstance(env.unwrapped, CodingEnv)
    env.close()


def test_it_works_with_the_wrapper_that_counts_episodes(env: CodingEnv) -> None:
    counted = RecordEpisodeStatistics(env)
    counted.reset(options={"task": "little/a"})
    counted.step("echo 42 > answer.txt")
    *_, info = counted.step("submit")
    assert (info["episode"]["r"], info["episode"]["l"]) == (1.0, 2)


def test_it_works_in_gymnasium_s_own_vector_environments() -> None:
    made = gym.make_vec(
        "rayroll/Tasks-v0", num_envs=2, vectorization_mode="sync", tasks=[little.task()], max_steps=3, **LOCAL
    )
    made.reset(seed=1)
    made.step(("echo 42 > answer.txt", "exit 3"))
    observations, rewards, terminations, truncations, infos = made.step(("submit", "echo hello"))
    assert list(rewards) == [1.0, 0.0] and list(terminations) == [True, False] and not truncations.any()
    assert observations == ("", "hello\n")
    assert infos["timing_s"]["run"].dtype == np.float64
    made.close()


def test_the_action_that_follows_an_episode_s_end_is_not_executed() -> None:
    """Gymnasium's next-step autoreset ignores it; run in the next episode's sandbox it would do harm."""
    made = gym.make_vec("rayroll/Tasks-v0", num_envs=1, vectorization_mode="sync", tasks=[little.task()], **LOCAL)
    made.reset()
    made.step(("submit",))
    observations, rewards, *_ = made.step(("touch harm",))
    assert (observations, list(rewards)) == (("Write 42 into answer.txt.",), [0.0])
    assert made.step(("ls",))[0] == ("",)
    made.close()


@pytest.mark.parametrize("attribute", ["observation_space", "action_space"])
def test_the_spaces_are_text_and_pickle_small(env: CodingEnv, attribute: str) -> None:
    space = getattr(env, attribute)
    assert isinstance(space, UnicodeText)
    assert len(pickle.dumps(space)) < 1000


@pytest.mark.parametrize(
    "command",
    [
        "",
        "printf 'hello world\\n\\303\\251'",
        "head -c 3000000 /dev/urandom",
        "printf '\\355\\240\\200'",
        "exit 9",
        "echo \0",
    ],
    ids=["nothing", "unicode", "3 MB of noise", "encoded surrogate", "failure", "nul"],
)
def test_every_observation_is_in_the_space(env: CodingEnv, command: str) -> None:
    observation, _ = env.reset()
    assert observation in env.observation_space
    observation, reward, terminated, truncated, info = env.step(command)
    assert observation in env.observation_space and command in env.action_space
    observation.encode()  # text, all of it
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert 0 <= info["exit_code"] <= 255


def test_infos_have_the_same_types_in_every_step(env: CodingEnv) -> None:
    env.reset()
    kinds = []
    for command in ("true", "sleep 0.1; exit 3", "yes | head -c 1000000", "echo \0"):
        *_, info = env.step(command)
        kinds.append(
            {k: type(v) for k, v in info.items() if k != "notice"} | {k: type(v) for k, v in info["timing_s"].items()}
        )
    assert kinds[0] == kinds[1] == kinds[2] == kinds[3]
    assert {kinds[0][k] for k in ("run", "spawn", "drain", "transport")} == {float}


# --- episodes ---


def test_a_solved_task_is_worth_one_and_ends(env: CodingEnv) -> None:
    observation, info = env.reset(options={"task": "little/a"})
    assert (observation, info["task"]) == ("Write 42 into answer.txt.", "little/a")
    assert isinstance(info["reset_s"], float) and info["rung"] == "cached"
    assert env.step("echo 42 > answer.txt")[1:4] == (0.0, False, False)
    observation, reward, terminated, truncated, info = env.step(" submit\n")
    assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
    assert info["grade_report"] == ""


@pytest.mark.parametrize(("grade_on", "reward"), [("end", 1.0), ("submit", 0.0)])
def test_the_last_step_truncates_and_grades(grade_on: Any, reward: float) -> None:
    env = CodingEnv(tasks=[little.task()], max_steps=2, grade_on=grade_on, **LOCAL)
    env.reset()
    env.step("echo 42 > answer.txt")
    observation, got, terminated, truncated, _ = env.step("echo last")
    assert (observation, got, terminated, truncated) == ("last\n", reward, False, True)
    env.close()


def test_the_deadline_truncates() -> None:
    env = CodingEnv(tasks=[little.task()], deadline_s=0.5, **LOCAL)
    env.reset()
    observation, _, terminated, truncated, info = env.step("echo begun; sleep 60")
    assert (observation, terminated, truncated) == ("begun\n[ended by its time limit]\n", False, True)
    assert info["timed_out"] is True
    env.close()


def test_the_word_that_submits_can_be_chosen() -> None:
    env = CodingEnv(tasks=[little.task()], submit="I am done", **LOCAL)
    env.reset()
    assert env.step("submit")[2] is False
    assert env.step("I am done")[2] is True
    env.close()


def test_equal_seeds_choose_equal_tasks_and_seeds() -> None:
    tasks = [little.task(str(number)) for number in range(20)]
    chosen = []
    for _ in range(2):
        env = CodingEnv(tasks=tasks, **LOCAL)
        first = env.reset(seed=11)[1]["task"], env.step("echo $RAYROLL_SEED")[0]
        more = [env.reset()[1]["task"] for _ in range(3)]
        chosen.append((first, more))
        env.close()
    assert chosen[0] == chosen[1]
    assert len({*chosen[0][1], chosen[0][0][0]}) > 1


def test_each_episode_has_a_sandbox_of_its_own(env: CodingEnv) -> None:
    env.reset()
    env.step("touch /tmp/trace trace; export X=1")
    env.reset()
    assert env.step("ls /tmp; ls; echo [$X]")[0] == "[]\n"
    assert len(little.left_of_this_process()) == 1


def test_step_needs_reset_first_and_after_an_end(env: CodingEnv) -> None:
    with pytest.raises(gym.error.ResetNeeded):
        env.step("true")
    env.reset()
    env.step("submit")
    with pytest.raises(gym.error.ResetNeeded):
        env.step("true")


@pytest.mark.parametrize("action", [None, 3, b"ls", ["ls"]])
def test_an_action_that_is_no_text_is_the_caller_s_fault_and_costs_nothing(env: CodingEnv, action: Any) -> None:
    env.reset()
    with pytest.raises(CallerError):
        env.step(action)
    assert env.step(np.str_("echo on"))[0] == "on\n"


def test_rendering_shows_the_terminal_so_far() -> None:
    env = CodingEnv(tasks=[little.task()], render_mode="ansi", **LOCAL)
    env.reset()
    env.step("echo hello")
    assert env.render() == "Write 42 into answer.txt.\n$ echo hello\nhello\n"
    env.reset()
    assert env.render() == "Write 42 into answer.txt."
    env.close()


def test_closing_twice_is_closing_once(env: CodingEnv) -> None:
    env.reset()
    env.close()
    env.close()
    assert little.left_of_this_process() == []
    with pytest.raises(gym.error.ResetNeeded):
        env.step("true")


# --- what goes wrong ---


def kill_the_sandbox(env: CodingEnv) -> None:
    assert env._session is not None
    sandbox = portal().run(env._session.session.booted())
    os.kill(int(sandbox.facts["pid"]), signal.SIGKILL)


def test_a_lost_sandbox_raises_and_the_next_reset_works(env: CodingEnv) -> None:
    env.reset()
    kill_the_sandbox(env)
    with pytest.raises(SandboxLostError) as lost:
        env.step("true")
    assert isinstance(lost.value, InfraFailure)
    with pytest.raises(gym.error.ResetNeeded):
        env.step("true")
    env.reset()
    assert env.step("echo again")[0] == "again\n"


def test_an_agent_that_ends_its_sandbox_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).with_name("plugins"))
    disturbance = {"inner_config": LOCAL["substrate_config"], "cause": "oom"}
    env = CodingEnv(tasks=[little.task()], substrate="disturbed", substrate_config=disturbance)
    env.reset()
    kill_the_sandbox(env)
    observation, reward, terminated, truncated, info = env.step("true")
    assert (observation, reward, terminated, truncated) == (
        "rayroll: the sandbox ran out of memory\n",
        0.0,
        True,
        False,
    )
    assert (info["failure"]["fault"], info["failure"]["error"]) == ("policy", "SandboxKilledError")
    env.close()


def test_tests_without_a_verdict_raise_and_name_the_task() -> None:
    env = CodingEnv(tasks=[little.task(grader="true")], **LOCAL)
    env.reset()
    with pytest.raises(GraderError) as error:
        env.step("submit")
    assert error.value.facts["task"] == "little/write"
    env.close()


def test_an_interrupted_step_leaves_the_episode_usable(env: CodingEnv) -> None:
    env.reset()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        env.step("sleep 60")
    assert env.step("echo on")[0] == "on\n"


def test_an_environment_that_is_made_and_never_reset_starts_nothing() -> None:
    env = CodingEnv(tasks=[little.task()], substrate="docker", substrate_config={"host": "unix:///nowhere"})
    env.close()
    with pytest.raises(InfraFailure):
        env.reset()
    env.close()


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({}, "either a pack or tasks"),
        ({"pack": "hello_shell", "tasks": [little.task()]}, "either a pack or tasks"),
        ({"pack": "helo_shell"}, "hello_shell"),
        ({"tasks": []}, "no task"),
        ({"tasks": [little.task()], "substrate": "locl"}, "did you mean 'local'"),
        ({"tasks": [little.task()], "substrate_config": {"rotfs": "host"}}, "did you mean rootfs"),
        ({"tasks": [little.task()], "session": {"lease": 3}}, "did you mean lease_s"),
        ({"tasks": [little.task()], "max_steps": 0}, "at least 1"),
        ({"tasks": [little.task()], "render_mode": "human"}, "ansi"),
        ({"tasks": [little.task()], "grade_on": "never"}, "end"),
    ],
)
def test_bad_settings_are_answered_with_the_way_out(options: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        CodingEnv(**options)
    assert hint in str(error.value)


@pytest.mark.parametrize(
    ("options", "hint"), [({"task": "little/c"}, "did you mean"), ({"taks": "little/a"}, "did you mean 'task'")]
)
def test_unknown_tasks_and_options_come_with_the_nearest_names(env: CodingEnv, options: Any, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        env.reset(options=options)
    assert hint in str(error.value)


def test_gymnasium_s_outer_time_limit_is_refused() -> None:
    env = gym.make("rayroll/HelloShell-v0", max_episode_steps=5, **LOCAL)
    with pytest.raises(ConfigError, match="max_steps"):
        env.reset()
    env.close()


def test_time_does_not_run_before_the_first_reset(env: CodingEnv) -> None:
    before_s = time.monotonic()
    _, info = env.reset()
    assert 0 < info["reset_s"] <= time.monotonic() - before_s
