"""A server that has loaded torch and all of our code, and forks a process for every command.

A command is a process of its own either way. Loading torch and Hydra anew takes two seconds of it,
which a test that asks what a command does need not wait for.

The server itself runs no operator and starts no thread, so that its forks are as clean as new
processes.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBER = struct.Struct("<q")
PR_SET_PDEATHSIG = 1
LIBRARIES = ("torch", "torch._dynamo", "hydra.main", "cv2", "h5py", "lmdb", "sklearn.datasets")
EXTRAS = ("matplotlib.backends.backend_agg", "torch.utils.tensorboard", "torchmetrics")
PACKAGE = "framework"


ENVIRONMENT = dict(os.environ)  # before libraries and tests add to it
at_start_of_test: dict[str, str] = {}  # what a test changes is what differs from this
PIDS: set[int] = set()  # of servers, which outlive a test


class Server:
    """The server, as a test process sees it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        words = [sys.executable, "-m", "tests.cli.preloaded", str(theirs.fileno())]
        self.process = subprocess.Popen(
            words, cwd=ROOT, env=ENVIRONMENT, pass_fds=[theirs.fileno()]
        )
        PIDS.add(self.process.pid)
        theirs.close()

    def run(self, words: tuple[str, ...], cwd: Path | None, limit_s: float) -> tuple[int, str, str]:
        """Run ``paceline WORDS``. Return its exit code, output and errors."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            request = json.dumps({"words": words, "cwd": os.path.abspath(cwd or ".")}).encode()
            files = [out.fileno(), err.fileno()]
            socket.send_fds(self._socket, [NUMBER.pack(len(request))], files)
            self._socket.sendall(request)
            pid = self._number()
            self._socket.settimeout(limit_s)
            try:
                code = self._number()
            except TimeoutError:
                os.killpg(pid, signal.SIGKILL)
                self._socket.settimeout(None)
                self._number()
                raise subprocess.TimeoutExpired(["paceline", *words], limit_s) from None
            self._socket.settimeout(None)
            texts = [_text(file) for file in (out, err)]
        return code, *texts

    def _number(self) -> int:
        return NUMBER.unpack(_received(self._socket, NUMBER.size))[0]

    def close(self) -> None:
        """End the server."""
        # A process that a test forked and left may hold the socket, too.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.process.wait()


def _text(file) -> str:
    file.seek(0)
    return file.read().decode()


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def serve(connection: socket.socket) -> list[str] | None:
    """Fork a process for every request.

    In that process, return the command's words. In the server, return None at the end.
    """
    while True:
        head, files, _, _ = socket.recv_fds(connection, NUMBER.size, 2)
        if not head:
            return None
        request = json.loads(_received(connection, NUMBER.unpack(head)[0]))
        pid = os.fork()
        if pid == 0:
            connection.close()
            os.setsid()
            for target, file in zip((1, 2), files, strict=True):
                os.dup2(file, target)
                os.close(file)
            os.chdir(request["cwd"])
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return request["words"]
        for file in files:
            os.close(file)
        connection.sendall(NUMBER.pack(pid))
        _, status = os.waitpid(pid, 0)
        connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))


def preload() -> None:
    """Import what commands import, without running any of it."""
    for name in LIBRARIES:
        importlib.import_module(name)
    package = importlib.import_module(PACKAGE)
    modules = pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")
    for name in [*EXTRAS, *(module.name for module in modules)]:
        with suppress(ImportError):  # an extra is not installed
            importlib.import_module(name)


def main() -> None:
    """Serve until the test process ends, or run one command as ``python -m framework`` does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest
    connection = socket.socket(fileno=int(sys.argv[1]))
    preload()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it looks at
    words = serve(connection)
    if words is not None:
        sys.argv = [str(ROOT / "framework" / "__main__.py"), *words]
        _run_and_exit()


def _run_and_exit() -> None:
    """Run the command, and end without taking the loaded modules apart.

    Taking them apart takes longer than most commands.
    """
    from framework.__main__ import main as run

    code: object = 1
    try:
        run()
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001  # the test reads the traceback
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    main()
