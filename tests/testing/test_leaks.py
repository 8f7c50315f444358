"""The look at what is left behind sees each kind of thing, and nothing that is meant to stay."""

from __future__ import annotations

import socket
import subprocess
import threading

import pytest

from rayroll.testing import leaks


def test_a_clean_body_passes() -> None:
    with leaks.watch():
        subprocess.run(["true"], check=True)
        with socket.create_server(("127.0.0.1", 0)):
            pass


def test_a_child_process_left_running_is_named() -> None:
    child = None
    try:
        with pytest.raises(AssertionError, match=r"child processes.*sleep 617"), leaks.watch():
            child = subprocess.Popen(["sleep", "617"])
    finally:
        assert child is not None
        child.kill()
        child.wait()


def test_a_dead_child_that_nobody_collected_is_named() -> None:
    child = None
    try:
        with pytest.raises(AssertionError, match="dead, not collected"), leaks.watch():
            child = subprocess.Popen(["true"])
    finally:
        assert child is not None
        child.wait()


def test_a_thread_left_running_is_named() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="left-over")
    try:
        with pytest.raises(AssertionError, match="left-over"), leaks.watch():
            thread.start()
    finally:
        end.set()
        thread.join()


def test_a_socket_left_open_is_named_with_its_address() -> None:
    server = None
    try:
        with pytest.raises(AssertionError, match=r"sockets.*127\.0\.0\.1"), leaks.watch():
            server = socket.create_server(("127.0.0.1", 0))
    finally:
        assert server is not None
        server.close()


def test_what_is_on_its_way_out_is_waited_for() -> None:
    with leaks.watch():
        threading.Timer(0.2, lambda: None).start()


def test_what_lasts_by_design_is_not_counted() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="sdk-poller-1")
    try:
        with leaks.watch(threads=(*leaks.LASTING_THREADS, "sdk-")):
            thread.start()
    finally:
        end.set()
        thread.join()


def test_an_error_of_the_body_is_not_hidden_by_what_it_left() -> None:
    server = None
    try:
        with pytest.raises(ZeroDivisionError), leaks.watch():
            server = socket.create_server(("127.0.0.1", 0))
            raise ZeroDivisionError
    finally:
        assert server is not None
        server.close()
