"""Handlers hold for the length of a block."""

import signal
import subprocess
import sys
import threading

import pytest

from framework.system.signal_handlers import handled


def test_a_handler_answers_until_the_block_ends():
    before, noted = signal.getsignal(signal.SIGUSR1), []
    with handled([signal.SIGUSR1], lambda number, _: noted.append(number)):
        signal.raise_signal(signal.SIGUSR1)
    assert noted == [signal.SIGUSR1]
    assert signal.getsignal(signal.SIGUSR1) == before


def test_after_an_error_too():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="inside"), handled([signal.SIGTERM], signal.SIG_IGN):
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGTERM) == before


def test_outside_the_main_thread_nothing_changes():
    before, result = signal.getsignal(signal.SIGUSR1), []

    def work():
        with handled([signal.SIGUSR1], signal.SIG_IGN):
            result.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert result == [before]


def test_a_default_ends_a_process_whose_handler_cannot_run():
    """As a rank's that waits in C++ for one that is dead."""
    program = """
import signal, ctypes
from framework.system.signal_handlers import handled
signal.signal(signal.SIGTERM, lambda *_: None)
with handled([signal.SIGTERM], signal.SIG_DFL):
    print("waits", flush=True)
    ctypes.PyDLL(None).sleep(60)  # keeps the GIL
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM
