"""A signal ends a command that has nothing to save, whatever code runs at that moment."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest

from framework.system import stopping
from tests.cli.command import Done
from tests.forks import forked

ROOT = str(Path(__file__).parents[2])
HEAD = """
import ast, ctypes, gc, os, signal, subprocess, sys, threading, time, weakref
import framework.main as console

def strike(*_):
    signal.raise_signal(signal.SIGTERM)
    return 0
"""
# each runs where the command would; the last line must not be reached
MOMENTS = {
    "the garbage collector's callback, in ast.parse": """
        gc.callbacks.append(strike)
        gc.set_threshold(1)
        ast.parse("x = [1, 2]\\n" * 2000)
    """,
    "__del__": """
        class Doomed:
            __del__ = strike
        Doomed()
    """,
    "a callback of ctypes": """
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(strike)(1)
    """,
    "a library that catches everything": """
        try:
            strike()
        except BaseException:
            pass
    """,
}


def run(body: str) -> Done:
    """Run ``body`` as what ``paceline`` does, in a forked process."""
    program = HEAD + "def work(_):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ")
    program += (
        "\n    print('still there')\n    return 0\n\n"
        "console._dispatch = work\nsys.exit(console.run([]))\n"
    )
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:

        def work() -> None:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115  # until the end
            exec(program, {"__name__": "__main__"})

        process = forked(work)
        process.join(60)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return Done(process.exitcode, *texts)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_ends_the_command_in(moment: str):
    done = run(MOMENTS[moment])
    assert done == (143, "", "stopped by SIGTERM\n")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [("SIGINT", 130, "interrupted"), ("SIGUSR1", 143, "stopped by SIGUSR1")],
)
def test_the_exit_code_and_the_line_name_the_signal(name: str, code: int, words: str):
    done = run(f"signal.raise_signal(signal.{name})")
    assert done == (code, "", f"{words}\n")


def test_what_is_half_done_is_undone_the_newest_first_and_what_is_done_is_kept():
    done = run("""
        from framework.system.durable import publish, write_text
        from framework.system.durable import locked
        from framework.system.stopping import message_if_stopped, undone
        from pathlib import Path
        write_text(Path("kept.txt"), "all of it")
        with undone(lambda _: os.rmdir("folder")), undone(lambda stop: os.unlink("folder/file")):
            os.mkdir("folder")
            Path("folder/file").touch()
            with locked(Path("x.lock"), lambda _: None), publish(Path("x.txt")) as temporary:
                temporary.touch()
                with message_if_stopped("stopped{by}: half of it"):
                    strike()
    """)
    assert (done.code, done.err) == (143, "stopped by SIGTERM: half of it\n")
    assert os.listdir() == ["kept.txt"]


def test_the_processes_that_it_started_end_and_those_that_they_started():
    done = run("""
        child = os.fork()
        if not child:
            if os.fork():
                print("up", flush=True)
            time.sleep(600)
        while not (grandchild := open(f"/proc/{child}/task/{child}/children").read()):
            time.sleep(0.01)
        print(child, grandchild, flush=True)
        strike()
    """)
    assert done.code == 143
    pids = [word for word in done.out.split() if word != "up"]
    assert len(pids) == 2
    assert not [pid for pid in pids if is_running(pid)]


def is_running(pid: str) -> bool:
    """Return whether a process still runs, and does not only wait for its parent to ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_without_handlers_of_its_own_ends_and_cleans_up_nothing():
    done = run("""
        from framework.system.stopping import undone
        with undone(lambda _: print("undone", flush=True)):
            child = os.fork()
            if not child:
                strike()
                time.sleep(60)
            status = os.waitpid(child, 0)[1]
            print(os.waitstatus_to_exitcode(status))
    """)
    assert done == (0, "-15\nstill there\n", "")


def test_a_second_signal_does_not_interrupt_the_cleaning():
    done = run("""
        from framework.system.stopping import undone
        with undone(lambda _: print("undone", flush=True)), undone(strike):
            strike()
    """)
    assert (done.code, done.out) == (143, "undone\n")


def test_a_second_signal_ends_a_cleaning_that_hangs():
    done = run("""
        import framework.system.stopping as stopping
        stopping.SAME_S = -1.0
        with stopping.undone(lambda _: time.sleep(600)), stopping.undone(strike):
            strike()
    """)
    assert (done.code, done.err) == (143, "")


def test_a_child_is_born_deaf_and_hears_when_it_says_so():
    done = run("""
        from framework.system.stopping import blocked_signals
        child = (
            "from framework.system.stopping import set_all; import signal; "
            "set_all(signal.SIG_DFL); print('not reached')"
        )
        with blocked_signals():
            process = subprocess.Popen([sys.executable, "-c", child])
            process.send_signal(signal.SIGINT)
        print(process.wait(), signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """)
    assert (done.out, done.err) == ("-2 set()\nstill there\n", "")


def test_the_console_script_hears_signals_before_anything_large_is_imported():
    program = (
        "import sys, framework.__main__ as m; m.install(); "
        "print('torch' in sys.modules, 'hydra' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "False False\n"


def test_a_signal_on_the_way_out_changes_nothing():
    program = (
        HEAD
        + "import atexit\natexit.register(strike)\nconsole._dispatch = lambda _: 3\nconsole.main()"
    )
    environment = {**os.environ, "PYTHONPATH": ROOT}
    words, pipes = [sys.executable, "-c", program], {"capture_output": True, "text": True}
    done = subprocess.run(words, **pipes, check=False, env=environment)
    assert (done.returncode, done.stderr) == (3, "")


def test_a_thread_in_cpp_keeps_the_exit_code_and_the_output():
    """Python's teardown would end the thread as it comes back from C++, and abort."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            """
import atexit, logging.handlers, sys, threading, time
from datetime import timedelta
from torch.distributed import HashStore
import framework.main as console

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(3.0)  # the teardown lasts longer than the call

def wait_in_cpp():
    HashStore().wait(["never"], timedelta(seconds=2.0))

def work(_):
    sys.slow = Slow()
    sys.file = open("file.txt", "w")
    sys.file.write("written")
    memory = logging.handlers.MemoryHandler(10, target=logging.StreamHandler(sys.stdout))
    logging.getLogger().addHandler(memory)
    logging.warning("logged")
    atexit.register(print, "at exit")
    threading.Thread(target=lambda: (time.sleep(0.5), print("awaited"))).start()
    threading.Thread(target=wait_in_cpp, daemon=True).start()
    print("printed")
    return 75

console._dispatch = work
console.main()
""",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": ROOT},
    )
    assert (done.returncode, done.stderr) == (75, "")
    assert done.stdout == "printed\nawaited\nat exit\nlogged\n"
    assert Path("file.txt").read_text() == "written"


def test_a_default_ends_a_process_whose_handler_cannot_run():
    """As a rank's that waits in C++ for one that is dead."""
    waits, waiting = os.pipe()

    def work():
        signal.signal(signal.SIGTERM, lambda *_: None)
        with stopping.handled([signal.SIGTERM], signal.SIG_DFL):
            os.write(waiting, b".")
            ctypes.PyDLL(None).sleep(60)  # keeps the GIL

    process = forked(work)
    os.read(waits, 1)
    process.terminate()
    process.join(30)
    assert process.exitcode == -signal.SIGTERM
    os.close(waits)
    os.close(waiting)


class Threads:
    """A thread that works for so many seconds after it was told to stop."""

    def __init__(self, name, seconds, ended):
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(name, seconds, ended), daemon=True)]
        self.threads[0].start()

    def run(self, name, seconds, ended):
        self.stopped.wait()
        time.sleep(seconds)
        ended.append(name)

    def stop(self):
        self.stopped.set()


class Processes:
    def __init__(self, ended):
        self.ended = ended

    def close(self):
        self.ended.append("processes")


@pytest.fixture
def ended(monkeypatch):
    """Return a list of what ends, in this order. What other tests have left open stays so."""
    monkeypatch.setattr(stopping, "_processes", type(stopping._processes)())
    monkeypatch.setattr(stopping, "_threads", type(stopping._threads)())
    return []


def test_processes_are_closed_before_threads_are_awaited(ended):
    threads, processes = Threads("threads", 0.2, ended), Processes(ended)
    stopping.stop_at_end(threads)
    stopping.close_at_end(processes)
    stopping._end_owners()
    assert ended == ["processes", "threads"]


def test_a_thread_that_does_not_end_is_not_awaited_for_ever(ended, monkeypatch):
    monkeypatch.setattr(stopping, "LONGEST_S", 0.2)
    slow, quick = Threads("slow", 1.0, ended), Threads("quick", 0.0, ended)
    stopping.stop_at_end(slow)
    stopping.stop_at_end(quick)
    stopping._end_owners()
    assert ended == ["quick"]


def test_a_forked_process_leaves_them_to_its_parent(ended):
    processes = Processes(ended)
    stopping.close_at_end(processes)

    def work():
        stopping._end_owners()
        os._exit(len(ended))

    process = forked(work)
    process.join()
    assert process.exitcode == 0
    stopping._end_owners()
    assert ended == ["processes"]
