"""The page about a trace store is one file that asks for nothing, tells no secrets, and can be zoomed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from requirements import require
from traces.tiny import call, result, session, step, store, text, user

from rayroll.report import traces as page_of
from rayroll.report._trace_figures import duration, number
from rayroll.report._trace_sections import sections
from rayroll.traces import prices, statistics
from rayroll.traces.findings import Findings, find
from rayroll.traces.store import Store
from rayroll.traces.synth import synthesize

pytest.importorskip("vl_convert", reason="needs the extra rayroll[report]")

OWN = session(
    "secret",
    step(user(0), call(2, "mcp__acme__deploy", result=5), call(3, "Bash", result=5, input="./acme </script> now")),
    step(result(5), text(70)),
)


@pytest.fixture(scope="module")
def found() -> Findings:
    with Store.open() as store:
        store.load_rows(synthesize(20, seed=5))
        return find(store, prices.load())


@pytest.fixture(scope="module")
def page(found: Findings) -> str:
    return page_of.render(found)


def own(*, include_inputs: bool = False) -> str:
    with store(OWN) as opened:
        return page_of.render(find(opened, prices.load(), include_inputs=include_inputs))


def drawn(page: str) -> list[dict[str, Any]]:
    match = re.search(r'<script type="application/json" id="timelines">(.*?)</script>', page, re.S)
    assert match is not None
    lines: list[dict[str, Any]] = json.loads(match[1])
    return lines


def test_the_page_asks_for_nothing(page: str) -> None:
    assert not re.search(r"<link|<iframe|<img|@import|url\(|\bsrc=|href=|fetch\(|XMLHttp|import\(", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}


def test_each_figure_is_a_picture_with_its_definition_and_its_source(found: Findings, page: str) -> None:
    figures = [figure for section in sections(found) for figure in section.figures]
    pictures = re.findall(r"<svg .*?</svg>", page, re.S)
    assert len(pictures) == len(figures) > 15
    for picture in pictures:
        ElementTree.fromstring(picture)
    for figure in figures:
        assert figure.statistic in statistics.names() and figure.definition and figure.source


def test_colours_are_the_pages_own_in_light_and_dark(page: str) -> None:
    used = set(re.findall(r"var\((--[\w-]+)\)", page))
    light, dark = page.split("prefers-color-scheme: dark", 1)
    assert used <= set(re.findall(r"(--[\w-]+):", light)) | {"--n"}
    assert "--ink: #e8ebef" in dark
    assert "#0000" not in re.sub(r"#0003", "", page), "a sentinel is left"


def test_published_values_of_other_data_are_called_so_and_have_no_difference(page: str) -> None:
    assert "published (other data)" in page and "<th>difference</th>" not in page


def test_published_values_of_the_same_data_have_differences_everywhere(found: Findings) -> None:
    same = replace(found, is_public_data=True)
    page = page_of.render(same)
    assert "other data" not in page and page.count("<th>difference</th>") == 2
    [steps] = [line for line in page_of.main_table(same) if line[""] == "steps"]
    assert steps["difference"] == f"−{1 - found.value('counts_scope', 'steps', provider='all') / 357161:.1%}"
    assert re.search(r"<title>shell command p50: published 850 ms \([+−][\d.]+%\)</title>", page)


def test_names_and_inputs_are_on_the_page_only_where_it_was_asked_for() -> None:
    shut, open_ = own(), own(include_inputs=True)
    assert "acme" not in shut and "secret" not in shut and "other tool 1" in shut
    assert "mcp__acme__deploy" in open_ and "it is not for others" in open_


def test_an_input_cannot_end_the_script_that_holds_it() -> None:
    assert "acme" in json.dumps(drawn(own(include_inputs=True)))
    assert own(include_inputs=True).count("</script>") == 2


def test_timelines_hold_every_span_of_their_lanes() -> None:
    [line] = drawn(own())
    assert [(name, rows) for name, _, rows in line["lanes"]] == [("model", 1), ("shell_command", 1), ("other", 1)]
    assert [span[2:4] for span in line["spans"]] == [[0, 3000], [2000, 3000], [3000, 2000], [5000, 65000]]


def test_what_cannot_be_drawn_says_so() -> None:
    with store(session("a", step(text(None)))) as untimed:
        page = page_of.render(find(untimed, prices.load()))
    assert "No step has a time" in page and "none can be drawn" in page and "<script" not in page
    assert page.count("Nothing to draw: this trace has no values for it.") > 8


def test_a_large_trace_makes_no_large_page(page: str) -> None:
    """Curves have their hundred points whatever they are of; what grows are the timelines, up to a bound each."""
    grows = sum(len(json.dumps(line)) for line in drawn(page))
    assert len(page) - grows < 1_000_000


@pytest.mark.parametrize(
    ("value", "told"), [(None, "–"), (0.05, "50 ms"), (900, "15 min"), (7200, "2 h"), (172800 * 2, "4 d")]
)
def test_times_are_told_in_the_unit_that_fits(value: float | None, told: str) -> None:
    assert duration(value) == told


@pytest.mark.parametrize(
    ("value", "told"), [(None, "–"), (8.5, "8.5"), (875, "875"), (118656, "119k"), (2.3e9, "2.3G"), (5e12, "5T")]
)
def test_counts_are_shortened_where_they_are_long(value: float | None, told: str) -> None:
    assert number(value) == told


ACTIONS = """
<script>
const canvas = document.getElementById("lanes"), said = [], tip = document.getElementById("tip");
const note = (what) => said.push([what, +canvas.dataset.from, +canvas.dataset.to, +canvas.dataset.visible]);
const key = (key) => { canvas.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true })); note(key); };
const box = () => canvas.getBoundingClientRect();
const at = (type, share, y, more) => canvas.dispatchEvent(new (more ? WheelEvent : PointerEvent)(type, {
  clientX: box().left + 132 + share * (box().width - 132), clientY: box().top + y, cancelable: true, ...more }));
document.getElementById("fold").checked = false; document.getElementById("fold").dispatchEvent(new Event("change"));
note("all"); key("+"); key("ArrowRight"); key("ArrowLeft"); key("-"); key("0");
at("wheel", 0, 40, { deltaY: -400 }); note("wheel"); key("0");
at("pointermove", 0.01, 28); said.push(["tip", tip.hidden, tip.textContent]);
document.getElementById("fold").checked = true; document.getElementById("fold").dispatchEvent(new Event("change"));
note("fold");
document.body.innerHTML = ""; document.body.textContent = JSON.stringify(said);
</script>
"""


def test_a_timeline_is_zoomed_panned_and_asked_in_a_browser(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    require("chromium", None if chromium else "no Chromium to show the page; fix: apt-get install chromium")
    assert chromium is not None
    rows = session("a", step(user(0), text(10)), step(user(1000), text(1010)))
    with store(rows) as opened:
        page = page_of.render(find(opened, prices.load()))
    (tmp_path / "page.html").write_text(page.replace("</body>", ACTIONS + "</body>"))
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom",
         "--window-size=1200,900", f"file://{tmp_path}/page.html"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    match = re.search(r"<body>(.*?)</body>", done.stdout, re.S)
    assert match is not None
    said = {what: rest for what, *rest in json.loads(match[1].strip())}
    assert said["all"] == [0, 1_010_000, 3]
    assert said["+"] == [202_000, 808_000, 1], "the middle stays, and only the wait is in sight"
    assert said["ArrowRight"] == [323_200, 929_200, 1] and said["ArrowLeft"] == [202_000, 808_000, 1]
    assert said["-"] == said["0"] == said["all"]
    assert said["wheel"][0] == 0 and said["wheel"][1] == pytest.approx(1_010_000 / 2.71828, rel=1e-4)
    assert said["tip"] == [False, "model, 10 s\nfrom 0 ms\n0 tokens read, 0 appended, 0 written"]
    assert said["fold"] == [0, 80_000, 3], "of a pause of 990 s a minute is left"
