"""What may be shared of a trace keeps its sizes and times, and nothing that anybody typed."""

from __future__ import annotations

import copy
import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayroll.errors import ConfigError
from rayroll.traces._allowed import TOOL_PREFIXES, TOOLS
from rayroll.traces.categories import category
from rayroll.traces.collect import collect
from rayroll.traces.rows import read_rows
from rayroll.traces.sanitize import Sanitizer, check, sanitize_rows

DATA = Path(__file__).parent / "data"
KEY = b"0123456789abcdef"
PSEUDONYM = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<=project_)[0-9a-f]{8}"
    r"|(?<=msg_)[0-9a-f]{24}|(?<=toolu_)[0-9a-f]{22}|(?<=call_)[0-9A-Za-z]{24}"
)


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}_rounds.jsonl").read_text().splitlines()]


NORMALIZED = rows("normalized")


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{path}.{key}")]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in leaves(item, f"{path}[{index}]")]
    return [(path, value)]


def texts(value: Any) -> list[str]:
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, str)]


def unsealed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "sanitized"}


def test_rows_are_tracelabs_up_to_the_choice_of_pseudonyms():
    ours = [unsealed(row) for row in sanitize_rows(NORMALIZED)]
    theirs = rows("sanitized")
    assert json.loads(PSEUDONYM.sub("*", json.dumps(ours))) == json.loads(PSEUDONYM.sub("*", json.dumps(theirs)))
    pairs = set(zip(PSEUDONYM.findall(json.dumps(ours)), PSEUDONYM.findall(json.dumps(theirs)), strict=True))
    assert len(pairs) == len({mine for mine, _ in pairs}) == len({other for _, other in pairs})


def test_every_number_and_time_is_the_originals():
    def measures(value: Any) -> list[tuple[str, Any]]:
        return [
            (path, leaf) for path, leaf in leaves(value) if not isinstance(leaf, str) or re.match(r"2026-\d\d-", leaf)
        ]

    assert [measures(unsealed(row)) for row in sanitize_rows(NORMALIZED)] == [measures(row) for row in NORMALIZED]


def test_sanitized_rows_pass_the_check_and_the_originals_do_not():
    assert check(NORMALIZED, sanitize_rows(NORMALIZED)) == []
    leaks = check(NORMALIZED, NORMALIZED)
    assert {leak.row for leak in leaks} == set(range(len(NORMALIZED)))
    assert {"project", "session_id", "tools[0].tool_call_id", "timing_events[0].tool_call_id"} <= {
        x.path for x in leaks
    }


def test_tracelabs_own_rows_pass_the_check():
    assert check(NORMALIZED, rows("sanitized")) == []


def test_sanitizing_twice_gives_the_same_bytes_with_any_key():
    once = [json.dumps(row) for row in sanitize_rows(NORMALIZED)]
    assert [json.dumps(row) for row in sanitize_rows(map(json.loads, once))] == once
    assert check(map(json.loads, once), map(json.loads, once)) == []


def test_a_sealed_row_that_was_changed_is_sanitized_anew():
    row = {**Sanitizer().row(NORMALIZED[0]), "project": "acme-secret"}
    assert "acme-secret" not in json.dumps(Sanitizer().row(row))
    row = {**Sanitizer().row(NORMALIZED[0]), "note": "acme-secret"}
    assert "acme-secret" not in json.dumps(Sanitizer().row(row))


def test_two_files_match_under_one_key_and_not_under_two():
    assert Sanitizer(KEY).row(NORMALIZED[0]) == Sanitizer(KEY).row(NORMALIZED[0])
    assert Sanitizer().row(NORMALIZED[0])["session_id"] != Sanitizer().row(NORMALIZED[0])["session_id"]


def test_the_key_is_neither_shown_nor_written():
    sanitizer = Sanitizer(KEY)
    assert repr(sanitizer) == "Sanitizer(key=<hidden>)"
    with pytest.raises(TypeError, match="written nowhere"):
        pickle.dumps(sanitizer)


def test_a_short_key_is_refused():
    with pytest.raises(ConfigError, match="too short"):
        Sanitizer(b"acme")


def test_what_is_no_row_is_refused():
    with pytest.raises(ConfigError, match="JSON object, not list"):
        Sanitizer().row([])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Bash", "apply_patch", "TaskUpdate"])
def test_tools_that_come_with_an_agent_keep_their_names(name: str):
    assert Sanitizer().row({"tools": [{"tool_name": name}]})["tools"] == [{"tool_name": name}]


def test_mcp_tools_stay_mcp_tools_of_the_same_server():
    names = ["mcp__acme__secret_thing", "mcp__acme__other", "acme_plugin"]
    first, second, plugin = (Sanitizer(KEY).row({"tools": [{"tool_name": n}]})["tools"][0]["tool_name"] for n in names)
    assert re.fullmatch(r"mcp__server_[0-9a-f]{8}__tool_[0-9a-f]{8}", first)
    assert first.split("__")[1] == second.split("__")[1] and first != second
    assert re.fullmatch(r"tool_[0-9a-f]{8}", plugin)


def renamed(*names: str) -> list[str]:
    row = Sanitizer(KEY).row({"tools": [{"tool_name": name} for name in names]})
    assert check([{}], [row]) == []
    return [tool["tool_name"] for tool in row["tools"]]


@pytest.mark.parametrize(
    "name", ["mcp__github__create_issue", "mcp__playwright__browser_click", "mcp__postgres__query"]
)
def test_tools_of_public_mcp_servers_keep_their_names(name: str):
    assert renamed(name) == [name]


@pytest.mark.parametrize("name", ["mcp__github__acme_deploy", "mcp__acme__create_issue", "mcp__github", "mcp__"])
def test_an_mcp_tool_is_public_only_as_a_whole(name: str):
    (shared,) = renamed(name)
    assert re.fullmatch(r"mcp__server_[0-9a-f]{8}__tool_[0-9a-f]{8}", shared)


def test_a_family_of_tools_keeps_how_its_names_begin():
    first, second = renamed("mcp__claude_ai_Notion__acme-roadmap", "mcp__codex_apps__github_acme")
    assert re.fullmatch(r"mcp__claude_ai_Notion__tool_[0-9a-f]{8}", first)
    assert re.fullmatch(r"mcp__codex_apps__github_tool_[0-9a-f]{8}", second)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.one_of(st.text(), st.sampled_from(sorted(TOOLS)), st.sampled_from(TOOL_PREFIXES).map("{}x".format)))
def test_a_tool_s_category_is_the_same_after_sanitizing(name: str):
    assert [category(shared) for shared in renamed(name)] == [category(name)]


@pytest.mark.parametrize(
    "model", ["claude-opus-4-7", "claude-haiku-4-5-20251001", "gpt-5.3-codex-spark", "<synthetic>"]
)
def test_public_models_keep_their_names(model: str):
    assert Sanitizer().row({"model": model})["model"] == model


@pytest.mark.parametrize("model", ["gpt-5-acme", "claude-opus-4-7@acme", "ft:gpt-5:acme", "acme/llama"])
def test_somebodys_own_model_gets_a_pseudonym(model: str):
    assert re.fullmatch(r"model_[0-9a-f]{8}", Sanitizer().row({"model": model})["model"])


def test_a_round_of_codex_is_tied_to_its_turn():
    row = Sanitizer().row(
        {"round_id": "01a7c9e4-a8f3-7c91-b2e0-31d6f4a9c580:2", "turn_id": "01a7c9e4-a8f3-7c91-b2e0-31d6f4a9c580"}
    )
    assert row["round_id"] == f"{row['turn_id']}:2"


def test_a_subagent_stays_the_same_one_under_a_pseudonym():
    first, again, other = (
        Sanitizer(KEY).row({"agent_id": name})["agent_id"] for name in ("acme-1", "acme-1", "acme-2")
    )
    assert first == again != other
    assert re.fullmatch("id_[0-9a-f]{24}", first)


def test_text_where_a_number_or_time_belongs_is_dropped():
    row = Sanitizer().row(
        {"output_tokens": "acme", "tools": [{"emitted_at": "at acme", "is_error": "acme", "result_chars": {}}]}
    )
    assert unsealed(row) == {
        "output_tokens": None,
        "tools": [{"emitted_at": None, "is_error": None, "result_chars": None}],
    }


def test_rows_of_our_own_collector_lose_their_private_fields_and_no_others(tmp_path: Path):
    for log, folder in (("claude", ".claude/projects/p"), ("codex", ".codex/sessions/2026/03/21")):
        (tmp_path / "home" / folder).mkdir(parents=True)
        shutil.copy(DATA / f"{log}_session.jsonl", tmp_path / "home" / folder)
    collect([tmp_path / "home"], tmp_path / "rows.jsonl")
    collected: list[Any] = list(read_rows(tmp_path / "rows.jsonl"))
    clean = list(sanitize_rows(collected))
    assert len(clean) == 19 and check(collected, clean) == []
    for row, shared in zip(collected, clean, strict=True):
        assert row.keys() - shared.keys() == {"session_file", "home", "user"} | ({"cwd"} & row.keys())
        assert [event["source"] for event in shared["timing_events"]] == [
            event["source"] for event in row["timing_events"]
        ]
        assert [tool.keys() | {"input"} for tool in shared["tools"]] == [tool.keys() for tool in row["tools"]]


def test_flags_of_ours_stay_and_others_go():
    row = {"flags": ["made_up_id", "acme", {"acme": 1}], "is_subagent": True, "parent_session_id": "claude:acme"}
    clean = Sanitizer().row(row)
    assert (clean["flags"], clean["is_subagent"]) == (["made_up_id"], True)
    assert re.fullmatch(r"claude:[0-9a-f-]{36}", clean["parent_session_id"])
    assert check([row], [clean]) == []
    assert [leak.path for leak in check([row], [{**clean, "flags": ["acme"]}])] == ["flags[0]"]


SECRETS = st.sampled_from(
    ["acme-Zz9qX7", "/home/ann/acme/Zz9qX7.py", "Zz9qX7@acme.example", "\ud83d Zz9qX7 acme", "sk-Zz9qX7acme"]
)


def planted(value: Any, secret: str, at: int, *, as_key: bool) -> tuple[Any, int]:
    """A copy with the secret in place of the text number ``at``, or as a further key of the dict number ``at``."""
    if isinstance(value, dict):
        copied = {}
        if as_key:
            copied = {secret: [{secret: secret}]} if at == 0 else {}
            at -= 1
        for key, item in value.items():
            copied[key], at = planted(item, secret, at, as_key=as_key)
        return copied, at
    if isinstance(value, list):
        items = []
        for item in value:
            new, at = planted(item, secret, at, as_key=as_key)
            items.append(new)
        return items, at
    if isinstance(value, str) and not as_key:
        return (secret if at == 0 else value), at - 1
    return value, at


@settings(max_examples=120, derandomize=True, deadline=None)
@given(st.sampled_from([NORMALIZED[0], NORMALIZED[1], NORMALIZED[12]]), SECRETS, st.integers(0, 40), st.booleans())
def test_a_secret_planted_anywhere_does_not_come_out(row: dict[str, Any], secret: str, at: int, as_key: bool):
    original, _ = planted(row, secret, at, as_key=as_key)
    clean = Sanitizer().row(original)
    assert "Zz9qX7" not in json.dumps(clean)
    assert check([original], [clean]) == []


@settings(max_examples=120, derandomize=True, deadline=None)
@given(st.sampled_from([NORMALIZED[0], NORMALIZED[1], NORMALIZED[12]]), SECRETS, st.integers(0, 25), st.booleans())
def test_the_check_finds_a_leak_planted_anywhere(row: dict[str, Any], secret: str, at: int, as_key: bool):
    clean = Sanitizer(KEY).row(row)
    leaking, _ = planted(clean, secret, at, as_key=as_key)
    expected = leaking != clean
    leaks = check([row], [leaking])
    assert bool(leaks) == expected
    assert not any("Zz9qX7" in str(leak) for leak in leaks)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({name for row in NORMALIZED for name in row})


@settings(max_examples=120, derandomize=True, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_rows_of_any_shape_are_accepted_and_stay_as_they_are_the_second_time(row: dict[str, Any]):
    clean = Sanitizer().row(copy.deepcopy(row))
    assert Sanitizer().row(json.loads(json.dumps(clean))) == clean
    assert check([row], [clean]) == []


@pytest.mark.parametrize("field", ["session_id", "round_id", "project", "trace_key"])
def test_an_id_that_was_passed_on_is_found_in_its_form(field: str):
    original = {"session_id": "claude:92ee5b8a-429c-e80b-5db6-5381512f4697", "round_id": "msg_3e0cf83dc2523801f59077fd"}
    original |= {"project": "project_4c7b8a1b", "trace_key": "id_3e0cf83dc2523801f59077fe"}
    [leak] = check([original], [{**Sanitizer(KEY).row(original), field: original[field]}])
    assert (leak.row, leak.path) == (0, field)


def test_a_text_of_another_row_is_found():
    first, second = {"project": "acmeacme"}, {"session_id": "92ee5b8a-429c-e80b-5db6-5381512f4697"}
    leaking = {"session_id": "deadbeef-429c-e80b-5db6-5381512f4697"}
    leaks = check([{"user": "deadbeef"}, first, second], [{}, Sanitizer().row(first), leaking])
    assert [(leak.row, leak.path) for leak in leaks] == [(2, "session_id")]


def test_rows_without_a_partner_are_reported():
    assert [str(leak) for leak in check([{}, {}], [{}])] == ["row 1: <row>: there is no sanitized row for it"]
