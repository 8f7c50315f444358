"""The blocking door: the same words as the asynchronous one, from any thread, and an interrupt that cleans up."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import little
import pytest
from requirements import check

from rayroll import Client, Session, SyncClient, SyncSession
from rayroll.errors import CallerError, ClosedError, SubstrateError
from rayroll.sync import portal
from rayroll.testing.disturbed import Disturbed, DisturbedConfig

LOCAL = {"substrate_config": little.SUBSTRATE_CONFIG["local"]}


@pytest.fixture(scope="module", autouse=True)
def blocking_door() -> None:
    """Its thread lasts as long as the process, so it is no leak of the test that opens it first."""
    portal()


@pytest.fixture(autouse=True)
def no_sandbox_is_left() -> Iterator[None]:
    check("local")
    yield
    assert little.left_of_this_process() == []


def test_idle_sandboxes_are_had_without_an_event_loop() -> None:
    with SyncClient("local", **LOCAL) as client:
        assert client.warm(little.task())
        with client.open(little.task()) as session:
            session.exec("true")
            assert session.rung == "warm"
        assert (client.pool.hits, client.cool()) == (1, 0)


def test_a_task_is_solved_and_graded_without_an_event_loop() -> None:
    with SyncClient("local", **LOCAL) as client, client.open(little.task(), seed=3) as session:
        assert session.exec("echo $RAYROLL_SEED; cat", stdin=b"typed").output == "3\ntyped"
        session.write("notes", b"written")
        assert session.read("notes") == b"written"
        assert session.solve().exit_code == 0
        assert session.grade(fingerprint=True).reward == 1.0
        assert (session.rung, session.task.id) == ("cached", "little/write")


@pytest.mark.parametrize(("blocking", "asynchronous"), [(SyncClient, Client), (SyncSession, Session)])
def test_the_twins_have_the_same_words_and_parameters(blocking: type, asynchronous: type) -> None:
    only_async = {"booted", "substrate", "recorder"}  # an object of the loop, and what boot() waits for
    for name, method in inspect.getmembers(asynchronous, inspect.isfunction):
        if name.startswith("_") or name in only_async:
            continue
        twin = getattr(blocking, name, None)
        assert twin is not None, f"{blocking.__name__} has no {name}"
        assert inspect.signature(twin).parameters == inspect.signature(method).parameters, name
        assert twin.__doc__


def test_threads_may_share_a_client() -> None:
    with SyncClient("local", **LOCAL) as client:

        def one(number: int) -> str:
            with client.open(little.task(), sample_index=number) as session:
                return session.exec(f"echo {number}").output

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(one, range(8))) == [f"{number}\n" for number in range(8)]


def test_closing_twice_is_closing_once_and_nothing_opens_after_it() -> None:
    client = SyncClient("local", **LOCAL)
    with pytest.raises(ClosedError):
        client.open(little.task())
    client.start()
    client.start()
    session = client.open(little.task())
    session.boot()
    client.close()
    client.close()
    session.close()
    with pytest.raises(ClosedError):
        client.open(little.task())
    with client:  # and may be opened again
        assert client.open(little.task()).exec("echo again").output == "again\n"


def test_an_error_of_closing_does_not_hide_the_body_s() -> None:
    substrate = Disturbed(DisturbedConfig(inner_config=little.SUBSTRATE_CONFIG["local"], destroys_that_fail=1))
    with SyncClient(substrate) as client:
        with pytest.raises(ZeroDivisionError), client.open(little.task()) as session:
            session.boot()
            raise ZeroDivisionError
        portal().run(substrate.destroy(substrate.created[0]))
        substrate._destroys_left = 1
        with pytest.raises(SubstrateError), client.open(little.task()) as session:
            session.boot()
        portal().run(substrate.destroy(substrate.created[1]))


def test_a_blocking_call_on_rayroll_s_own_loop_is_refused_instead_of_hanging() -> None:
    async def misuse() -> None:
        SyncClient("local", **LOCAL).start()

    with pytest.raises(CallerError, match=r"rayroll\.Client"):
        portal().run(misuse())


def test_an_interrupted_call_has_cleaned_up_when_it_raises() -> None:
    substrate = Disturbed(DisturbedConfig(inner_config=little.SUBSTRATE_CONFIG["local"], destroy_s=0.5))

    def interrupt() -> None:
        while not substrate.created:
            time.sleep(0.01)
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    with SyncClient(substrate) as client:
        interrupter.start()
        with pytest.raises(KeyboardInterrupt), client.open(little.task()) as session:
            session.exec("sleep 60")
        assert little.left_of_this_process() == []
    interrupter.join()


PROGRAM = """
import sys, time
sys.path[:0] = {path!r}
import little, rayroll
client = rayroll.SyncClient("local", substrate_config={{"rootfs": "host"}})
client.start()
print(client.run_id, flush=True)
session = client.open(little.task())
try:
    session.exec("sleep 600 & wait")
finally:
    print("cleaning", flush=True)
    {at_the_end}
"""


@pytest.mark.parametrize("at_the_end", ["client.close()", "pass"], ids=["closes", "forgets"])
def test_a_program_that_is_interrupted_leaves_no_sandbox(at_the_end: str) -> None:
    text = textwrap.dedent(PROGRAM).format(path=[*sys.path[:1], os.path.dirname(__file__)], at_the_end=at_the_end)  # noqa: PTH120
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        assert program.stdout is not None
        run_id = program.stdout.readline().strip()
        end_s = time.monotonic() + 60
        while not any("running" in line for line in little.left_on_this_node(run_id)):
            assert time.monotonic() < end_s
            time.sleep(0.02)
        os.killpg(program.pid, signal.SIGINT)
        assert program.stdout.readline() == "cleaning\n"
        program.wait(60)
    end_s = time.monotonic() + 60
    while little.left_on_this_node(run_id):
        assert time.monotonic() < end_s, little.left_on_this_node(run_id)
        time.sleep(0.2)


def in_a_fork(pipe: Any) -> None:
    with SyncClient("local", **LOCAL) as client, client.open(little.task()) as session:
        pipe.send(session.exec("echo from a fork").output)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_a_door_of_its_own() -> None:
    """As Gymnasium's AsyncVectorEnv forks its workers, after this process has used its own."""
    with SyncClient("local", **LOCAL) as client, client.open(little.task()) as session:
        session.boot()
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=in_a_fork, args=(theirs,))
        child.start()
        assert ours.poll(60)
        assert ours.recv() == "from a fork\n"
        child.join(60)
        ours.close()
        theirs.close()
        child.close()
        assert session.exec("echo still here").output == "still here\n"
