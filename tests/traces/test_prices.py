"""A price table prices what it names, and one that is wrong says on which line."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces.tiny import session, step, store, text, user

from rayroll.errors import ConfigError
from rayroll.traces import prices, statistics

GOOD = """\
as_of = "2026-06"

[[price]]
model = "big-1"
append_usd = 4
prefix_usd = 1
output_usd = 10

[[price]]
model = "big*"
append_usd = 8
prefix_usd = 2
output_usd = 20
"""


def test_the_first_line_that_fits_a_model_is_its_price() -> None:
    table = prices.parse(GOOD, where="mine.toml")
    assert [table.price_of(model).append_usd for model in ("big-1", "BIG-2")] == [4, 8]  # type: ignore[union-attr]
    assert table.price_of("small") is None
    assert table.price_of(None) is None


def test_sql_prices_a_model_as_the_table_does() -> None:
    table = prices.parse(GOOD, where="mine.toml")
    models = ("big-1", "BIG-2", "small", None)
    rows = session("a", *(step(user(0), text(1), append=1_000_000, model=model) for model in models))
    with store(rows) as traces:
        found = statistics.compute(traces.connection, "cost_by_model", prices=table.rows())
    priced = {model: table.price_of(model) for model in models}
    assert {row["model"]: row["total_usd"] for row in found} == {
        model: price and price.append_usd for model, price in priced.items()
    }


def test_the_table_that_comes_with_rayroll_prices_every_model_of_the_public_data_set() -> None:
    table = prices.load()
    named = {
        "gpt-5.5": 5,
        "claude-opus-4-7": 6.25,
        "gpt-5.4": 2.5,
        "gpt-5.3-codex": 5,
        "claude-haiku-4-5-20251001": 1.25,
        "claude-sonnet-4-5-20250929": 3.75,
    }
    assert {model: table.price_of(model).append_usd for model in named} == named  # type: ignore[union-attr]
    assert table.price_of("codex-auto-review") is None
    assert table.as_of == "2026-06"
    assert "TraceLab" in table.source


def test_a_table_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert prices.load(path) == prices.parse(GOOD, where="mine.toml")


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        (
            "prefix_usd = 2",
            "prefix_usd = -2",
            "mine.toml, line 12: prefix_usd: Input should be greater than or equal to 0",
        ),
        ("prefix_usd = 2", "prefix_usd = nan", "mine.toml, line 12: prefix_usd: Input should be a finite number"),
        ("output_usd = 10", 'output_usd = "ten"', "mine.toml, line 7: output_usd: Input should be a valid number"),
        ("output_usd = 10", "", "mine.toml, line 3: output_usd: Field required"),
        ("append_usd = 8", "apend_usd = 8", "line 11"),
        ("append_usd = 8", "append_usd = ", "mine.toml: no TOML: Invalid value (at line 11, column 14)"),
        ('"big-1"', '"*"', "mine.toml, line 9: 'big*' is never used, for '*' on line 3 fits it first"),
        ("as_of", "asof", "mine.toml: unknown field 'asof'; did you mean as_of?"),
    ],
)
def test_a_wrong_table_says_on_which_line(wrong: str, right: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        prices.parse(GOOD.replace(wrong, right), where="mine.toml")
    assert message in str(raised.value)
    assert "fix" in raised.value.facts


@pytest.mark.parametrize("text_of_file", ["", "price = 3", 'price = [{model = "a"}]', "{}"])
def test_a_file_of_something_else_is_no_price_table(text_of_file: str) -> None:
    with pytest.raises(ConfigError, match=r"mine\.toml"):
        prices.parse(text_of_file, where="mine.toml")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the price table"):
        prices.load(tmp_path / "absent.toml")
