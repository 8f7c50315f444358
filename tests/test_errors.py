"""Errors: whose fault each is, that their facts survive processes, and that names come with the nearest known ones."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from rayroll import errors
from rayroll.errors import ConfigError, Failure, RayrollError, SandboxFileError, unknown_name

FACTS = {"path": b"/a\xff", "limit_s": 3.5, "known": ["a", "b"], "nested": {"deep": (1, None)}}


def all_errors() -> list[type[RayrollError]]:
    found, new = [RayrollError], [RayrollError]
    while new:
        new = [sub for cls in new for sub in cls.__subclasses__() if sub.__module__ == errors.__name__]
        found += new
    return found


ALL = all_errors()


@pytest.mark.parametrize("cls", ALL)
def test_every_error_survives_pickling_with_its_facts(cls: type[RayrollError]) -> None:
    error = cls("it broke", **FACTS)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert (again.message, again.facts, str(again), again.fault) == ("it broke", FACTS, str(error), cls.fault)


def test_every_error_survives_ray(ray_cluster: Any) -> None:
    """Ray derives a class of its own from what a task raises, and some exceptions do not come back from that."""
    ray = ray_cluster

    @ray.remote
    def fail(error: RayrollError) -> None:
        raise error

    raised = [fail.remote(cls("it broke", **FACTS)) for cls in ALL]
    for cls, ref in zip(ALL, raised, strict=True):
        with pytest.raises(cls) as caught:
            ray.get(ref)
        cause = caught.value.cause  # type: ignore[attr-defined]
        assert (type(cause), cause.message, cause.facts) == (cls, "it broke", FACTS)


def test_every_error_is_public_and_documented() -> None:
    assert {cls.__name__ for cls in ALL} <= set(errors.__all__)
    assert all(cls.__doc__ for cls in ALL)
    assert errors.__all__ == sorted(errors.__all__)


@pytest.mark.parametrize(
    ("base", "fault"),
    [
        (errors.CallerError, "caller"),
        (errors.InfraFailure, "infra"),
        (errors.SandboxKilledError, "policy"),
        (errors.SandboxFileError, "policy"),
    ],
)
def test_a_fault_holds_for_a_whole_branch_of_the_tree(base: type[RayrollError], fault: str) -> None:
    assert {cls.fault for cls in ALL if issubclass(cls, base)} == {fault}


def test_only_tests_that_say_nothing_are_the_grader_s_fault() -> None:
    assert {cls for cls in ALL if cls.fault == "grader"} == {errors.GraderError}
    assert {cls for cls in ALL if cls.fault == "task"} == {errors.TaskError}


def test_an_error_says_its_facts() -> None:
    error = ConfigError("no such thing", name="x", known=["y"])
    assert str(error) == "no such thing (name='x', known=['y'])"
    assert str(ConfigError("no facts")) == "no facts"
    assert error.failure() == Failure("caller", str(error), "ConfigError")


def test_a_file_error_knows_the_system_s_number() -> None:
    assert (SandboxFileError("gone", errno=2).errno, SandboxFileError("gone").errno) == (2, 0)


def test_an_unknown_name_comes_with_the_nearest_known_ones() -> None:
    error = unknown_name("substrate", "dokcer", ["local", "docker", "qemu"])
    assert error.message == "unknown substrate 'dokcer'; did you mean 'docker'?"
    assert error.facts == {"known": ["docker", "local", "qemu"]}
    assert unknown_name("policy", "zzz", ["random"]).message == "unknown policy 'zzz'"
