"""What people type: a wrong field is answered with its reason and the nearest known names, all of them at once."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pydantic
import pytest

import rayroll
from rayroll.config import Config
from rayroll.errors import ConfigError


class Example(Config):
    """For these tests."""

    lease_s: float = pydantic.Field(default=30.0, gt=0)
    """Seconds."""
    max_starting: int = 8
    """Sandboxes."""
    names: tuple[str, ...] = ()
    """Names."""


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"leese_s": 3}, "unknown field 'leese_s'; did you mean lease_s?"),
        ({"zzz": 3}, "unknown field 'zzz'; known: lease_s, max_starting, names"),
        ({"lease_s": 0}, "lease_s: Input should be greater than 0"),
        ({"max_starting": "many"}, "max_starting: Input should be a valid integer"),
        ({"names": [1]}, "names.0: Input should be a valid string"),
    ],
)
def test_a_wrong_field_is_named_with_its_reason(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        Example.parse(values, where="example.toml")
    assert error.value.message.startswith(f"example.toml: {sentence}")


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        Example.parse({"leese_s": 3, "max_starting": None})
    assert "did you mean lease_s" in str(error.value) and "max_starting:" in str(error.value)


def test_a_config_is_frozen() -> None:
    config = Example.parse({"lease_s": 5})
    assert config == Example(lease_s=5.0)
    with pytest.raises(pydantic.ValidationError):
        config.lease_s = 6.0  # type: ignore[misc]


def all_configs() -> list[type[Config]]:
    for module in pkgutil.walk_packages(rayroll.__path__, "rayroll."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, new = [], [Config]
    while new:
        new = [sub for cls in new for sub in cls.__subclasses__() if sub.__module__.startswith("rayroll.")]
        found += new
    return sorted(set(found), key=lambda cls: f"{cls.__module__}.{cls.__name__}")


@pytest.mark.parametrize("cls", all_configs(), ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_every_field_of_every_config_is_documented_and_none_is_loose(cls: type[Config]) -> None:
    assert inspect.getdoc(cls)
    assert cls.model_config.get("extra") == "forbid" and cls.model_config.get("frozen") is True
    # Where a field's meaning is in its name, a docstring would repeat it.
    undocumented = [name for name, field in cls.model_fields.items() if not field.description]
    assert all(any(name == n for c in cls.__mro__ for n in getattr(c, "__annotations__", {})) for name in undocumented)
    vague = {"timeout", "mem", "memory", "size", "delay", "interval", "limit", "duration"}
    assert not vague & set(cls.model_fields), "a name without its unit"
