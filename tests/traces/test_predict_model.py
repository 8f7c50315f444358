"""A predictor learns as calls end, says quantiles, and is a file that tells no command."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayroll.errors import ConfigError
from rayroll.traces.predict.features import LEVELS, Call, Session
from rayroll.traces.predict.model import QUANTILES, Predictor
from rayroll.traces.predict.pace import Shares

WEIGHTS = dict.fromkeys(LEVELS, 1.0)
TESTS = Call("Bash", "SECRET=hunter2 pytest -q tests/private_name.py", 46)
LOOK = Call("Bash", "ls -la", 6)


def taught(**more: object) -> Predictor:
    predictor = Predictor(weights=WEIGHTS, **more)  # type: ignore[arg-type]
    for times in range(20):
        session = Session(project="own project")
        predictor.observe(LOOK, session, 0.01)
        predictor.observe(TESTS, session, 10 + times % 5)
    return predictor


def median_s(predictor: Predictor, call: Call, session: Session | None = None) -> float:
    return predictor.predict(call, session or Session()).median_s


def test_one_that_has_seen_nothing_says_so_by_how_wide_it_is() -> None:
    said = Predictor().predict(TESTS, Session())
    assert said.quantiles_s[0] < 0.1 < said.median_s < 10 < said.quantiles_s[-1]


def test_commands_are_told_apart() -> None:
    predictor = taught()
    assert median_s(predictor, LOOK) == pytest.approx(0.01, rel=0.1)
    assert 10 <= median_s(predictor, TESTS) <= 14


def test_an_unseen_command_is_judged_by_its_program() -> None:
    assert median_s(taught(), Call("exec_command", '{"cmd": "cd x && python3 -m pytest -vv other"}')) > 5


def test_a_call_that_ended_counts_at_once() -> None:
    predictor = taught()
    new = Call("Bash", "make world")
    before = median_s(predictor, new)
    for _ in range(5):
        predictor.observe(new, Session(), 600.0)
    assert before < 60 < 300 < median_s(predictor, new)


def test_asking_changes_nothing() -> None:
    predictor, session = taught(), Session()
    first = predictor.predict(TESTS, session).quantiles_s
    assert predictor.predict(TESTS, session).quantiles_s == first
    assert session == Session()


def test_what_this_session_saw_moves_its_next_prediction_and_no_other_sessions() -> None:
    predictor = taught(shares=Shares(session=0.2, command=0.4))
    slow = Session()
    for _ in range(3):
        predictor.observe(TESTS, slow, 30.0, learn=False)
    assert median_s(predictor, TESTS, slow) > median_s(predictor, TESTS)


def test_a_session_with_a_pace_counts_its_own_calls_once() -> None:
    shares = Shares(session=0.2, command=0.4)
    learning, frozen = taught(shares=shares), taught(shares=shares)
    sessions = Session(), Session()
    for predictor, session, learn in zip((learning, frozen), sessions, (True, False), strict=True):
        predictor.observe(TESTS, session, 11.0, learn=learn)
    said = [p.predict(TESTS, s).quantiles_s for p, s in zip((learning, frozen), sessions, strict=True)]
    assert said[0] == pytest.approx(said[1])


@pytest.mark.parametrize("seconds", [None, 0.0, -1.0, float("nan"), float("inf")])
def test_a_call_without_a_time_is_remembered_and_teaches_nothing(seconds: float | None) -> None:
    predictor, session = taught(), Session()
    before = predictor.predict(LOOK, Session()).quantiles_s
    predictor.observe(TESTS, session, seconds)
    assert session.calls == 1
    assert predictor.predict(LOOK, Session()).quantiles_s == before


@given(
    st.text(max_size=60),
    st.one_of(st.none(), st.text(max_size=80)),
    st.lists(st.floats(1e-9, 1e9), max_size=8),
)
def test_quantiles_never_cross(tool: str, command: str | None, times: list[float]) -> None:
    predictor, session = Predictor(weights=WEIGHTS, shares=Shares(0.1, 0.1, 0.5)), Session(project="p")
    call = Call(tool, command, 10, at_s=1.0)
    for seconds in times:
        predictor.observe(call, session, seconds)
    said = predictor.predict(call, session).quantiles_s
    assert list(said) == sorted(said)
    assert all(0 < seconds < 2e6 for seconds in said)


def test_a_file_gives_the_same_answers_and_goes_on_learning(tmp_path: Path) -> None:
    predictor = taught(shares=Shares(session=0.1), facts={"from": "here"})
    predictor.save(tmp_path / "m")
    loaded = Predictor.load(tmp_path / "m")
    answers = [one.predict(TESTS, Session()).quantiles_s for one in (loaded, predictor)]
    assert answers[0] == pytest.approx(answers[1])
    assert (loaded.weights, loaded.shares, loaded.facts) == (WEIGHTS, Shares(session=0.1), {"from": "here"})
    for one in (loaded, predictor):
        one.observe(LOOK, Session(), 5.0)
    loaded.save(tmp_path / "m")
    again = Predictor.load(tmp_path / "m")
    assert len(again) == len(predictor)
    assert again.predict(LOOK, Session()).quantiles_s == pytest.approx(predictor.predict(LOOK, Session()).quantiles_s)


def test_a_file_holds_no_text_of_a_call_and_is_its_owners(tmp_path: Path) -> None:
    taught().save(tmp_path / "m")
    content = (tmp_path / "m").read_bytes()
    assert not [text for text in (b"hunter2", b"pytest", b"private_name", b"own project", b"Bash") if text in content]
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o600


def test_two_models_of_the_same_calls_have_no_key_in_common() -> None:
    keys = [set(predictor._own) for predictor in (taught(), taught())]
    assert keys[0] and not keys[0] & keys[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: b"PK\x03\x04" + content, "is no model"),
        (lambda content: b"", "is no model"),
        (lambda content: content.replace(b'"version":1', b'"version":9'), "newer rayroll"),
        (lambda content: content[:-1], "damaged"),
        (lambda content: content + b"\0", "damaged"),
        (lambda content: content[:40], "damaged"),
        (lambda content: content.replace(b'"keys":', b'"kyes":'), "damaged"),
        (lambda content: content[:-4] + b"\xff\xff\xff\xff", "damaged"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, change: object, words: str) -> None:
    path = tmp_path / "m"
    taught().save(path)
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ConfigError, match=words):
        Predictor.load(path)


def test_a_model_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the model"):
        Predictor.load(tmp_path / "none")


def test_levels_are_the_askers() -> None:
    said = taught().predict(TESTS, Session(), (0.01, 0.5))
    assert len(said.quantiles_s) == 2 and QUANTILES[2] == 0.5
