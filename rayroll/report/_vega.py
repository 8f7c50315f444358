"""Vega-Lite to SVG that takes its colours from the page around it, so that light and dark both work.

A spec says colours by sentinels, which no chart has by itself: the base ones of ``INKS``, and those that a caller adds
for its own (``#0000NN``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rayroll.errors import ConfigError

__all__ = ["INKS", "svg"]

INKS = {
    "#000001": "var(--ink)",
    "#000002": "var(--muted)",
    "#000003": "var(--line)",
    "#000004": "var(--surface)",
}
"""What sentinels stand for: a chart does not know whether it is read in the dark."""


def svg(
    spec: Mapping[str, Any], *, inks: Mapping[str, str], width: int = 1000, gutter: int = 136, plot: int = 540
) -> str:
    """Render a spec to SVG that takes the page's colours, scales with its width and says on hover what is what.

    Args:
        spec: Vega-Lite, without ``$schema``, ``width`` and ``config``. A mark's ``description`` is what hovering says.
        inks: Sentinels of this chart beside ``INKS``, and the CSS that they stand for.
        width: Of the whole picture, in its own pixels; what the plot leaves is for text beside it.
        gutter: Left of the plot.
        plot: Of the plot itself.

    Raises:
        ConfigError: The extra ``rayroll[report]`` is not installed.
    """
    try:
        import vl_convert
    except ImportError:
        raise ConfigError("the HTML report needs its extra: pip install 'rayroll[report]'") from None
    font = "system-ui, sans-serif"
    whole = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": plot,
        "background": None,
        "padding": {"left": 0, "right": 0, "top": 2, "bottom": 8},
        **spec,
        "config": {
            "font": font,
            "view": {"stroke": None},
            "axis": {
                "aria": False,
                "labelColor": "#000002",
                "titleColor": "#000002",
                "gridColor": "#000003",
                "domain": False,
                "ticks": False,
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "titlePadding": 10,
                "labelPadding": 8,
            },
        },
    }
    drawn = vl_convert.vegalite_to_svg(whole, vl_version="6.1")
    size = re.match(r'<svg [^>]*height="([\d.]+)"[^>]*>(<g fill="none"[^>]*translate\()[\d.]+,([\d.]+)\)', drawn)
    assert size is not None, "vl-convert changed the head of its SVG"
    # One scale for all pictures: the plot begins at the gutter, and every picture is as wide as the page.
    height, group, top = size.groups()
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    drawn = head + f"{group}{gutter},{top})" + drawn[size.end() :]
    drawn = re.sub(
        r'<(path|line) aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="[^"]*"([^>]*)/>',
        r"<\1\3><title>\2</title></\1>",
        drawn,
    )
    inks = {**INKS, **inks}
    ink = re.compile("|".join(inks))
    # In tags only, never in what is read: hundredths of a pixel (half the size), and the page's colours.
    return re.sub(
        "<[^>]*>",
        lambda tag: ink.sub(lambda found: inks[found[0]], re.sub(r"(\d\.\d\d)\d+", r"\1", tag.group())),
        drawn,
    )
