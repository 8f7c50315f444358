"""What a million tokens of a model cost: a table that anybody may replace, and that says which line is wrong."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field

from rayroll.config import Config
from rayroll.errors import ConfigError

__all__ = ["Price", "PriceTable", "load", "parse"]

_FIX = "write it like rayroll/traces/prices.toml: as_of, source, and [[price]] with model and three prices"


class Price(Config):
    """One line of a table: what the models that fit it cost."""

    model: str = Field(min_length=1)
    """A model's name; ``*`` stands for anything, upper and lower case are the same."""
    append_usd: float = Field(ge=0, allow_inf_nan=False)
    """USD per million input tokens that were not read from the cache (fresh, or written to it)."""
    prefix_usd: float = Field(ge=0, allow_inf_nan=False)
    """USD per million input tokens read from the cache."""
    output_usd: float = Field(ge=0, allow_inf_nan=False)
    """USD per million output tokens, reasoning included."""
    source: str = ""
    """Where this line comes from, if not from where the table does."""

    def fits(self, model: str) -> bool:
        """Whether this is a price of the model."""
        return fnmatchcase(model.lower(), self.model.lower())


class PriceTable(Config):
    """Prices in the order in which they are tried: the first that fits holds."""

    as_of: str = ""
    """The day or month the prices are of."""
    source: str = ""
    """Where they come from."""
    price: tuple[Price, ...] = Field(min_length=1)
    """The lines."""

    def price_of(self, model: str | None) -> Price | None:
        """The price of a model; None where no line fits it."""
        return next((price for price in self.price if model is not None and price.fits(model)), None)

    def rows(self) -> list[dict[str, Any]]:
        """The table as the statistics of cost take it: ``compute(connection, "cost", prices=table.rows())``."""
        return [{"place": place, **price.model_dump(exclude={"source"})} for place, price in enumerate(self.price)]


def load(path: Path | str | None = None) -> PriceTable:
    """The table in a TOML file; without one, the table that comes with rayroll.

    Raises:
        ConfigError: It cannot be read or is no price table; the message names the line.
    """
    if path is None:
        return parse(files("rayroll.traces").joinpath("prices.toml").read_text(encoding="utf-8"), where="prices.toml")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the price table {path}: {error}", fix=_FIX) from None
    return parse(text, where=str(path))


def parse(text: str, *, where: str) -> PriceTable:
    """The table in a TOML text; ``where`` names it in messages.

    Raises:
        ConfigError: It is no price table; the message names the line.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # whose message names the line
        raise ConfigError(f"{where}: no TOML: {error}", fix=_FIX) from None
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines, 1) if re.match(r"\s*\[\[\s*price\s*\]\]", line)]
    entries = values.get("price", [])
    if not isinstance(entries, list) or len(starts) != len(entries):
        raise ConfigError(f"{where}: prices are written as one [[price]] each", fix=_FIX)
    prices = tuple(_price(entry, lines, start, where=where) for entry, start in zip(entries, starts, strict=True))
    _check_order(prices, starts, where=where)
    try:
        return PriceTable.parse(values | {"price": prices}, where=where)
    except ConfigError as error:
        raise ConfigError(error.message, fix=_FIX) from None


def _price(entry: Mapping[str, Any], lines: list[str], start: int, *, where: str) -> Price:
    """The entry whose header is on line ``start``; an error names the line of the field, or the header's."""
    try:
        return Price.parse(entry)
    except ConfigError as error:
        named = re.findall(r"(?:^|; )(?:unknown field )?'?(\w+)", error.message)
        found = (_line_of(field, lines, start) for field in named)
        line = next((number for number in found if number is not None), start)
        raise ConfigError(f"{where}, line {line}: {error.message}", fix=_FIX) from None


def _line_of(field: str, lines: list[str], start: int) -> int | None:
    for number in range(start + 1, len(lines) + 1):
        line = lines[number - 1].strip()
        if line.startswith("["):
            break
        if re.match(rf"[\"']?{re.escape(field)}[\"']?\s*=", line):
            return number
    return None


def _check_order(prices: tuple[Price, ...], starts: list[int], *, where: str) -> None:
    for later, price in enumerate(prices):
        for earlier in range(later):
            if prices[earlier].fits(price.model):
                raise ConfigError(
                    f"{where}, line {starts[later]}: {price.model!r} is never used, for {prices[earlier].model!r}"
                    f" on line {starts[earlier]} fits it first",
                    fix="put the narrower one first, or leave one out",
                )
