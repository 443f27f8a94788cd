"""Run the command, in this process or in a new one."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import traceback
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from framework import errors, main
from framework.cli import precedence
from framework.cli.arguments import granted, literal
from framework.cli.hydra_app import composed
from framework.system import stopping
from tests.advice import ASKED, Copy, try_advice

ROOT = Path(__file__).parents[2]
# Modules below these folders stay loaded. Others are the test's own.
LIBRARIES = (str(ROOT), *{sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
SIGNALS = (*stopping.NUMBERS, signal.SIGCHLD)
EXAMPLES = ("--config-dir", str(ROOT / "examples"), "allow_targets=[paceline_examples]")


class Done(NamedTuple):
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.err.strip().splitlines()[-1]


def paceline(*arguments: str, cwd: Path | None = None, **environment: str) -> Done:
    """Run ``paceline ARGUMENTS`` in this process, in the test's own directory or in ``cwd``.

    Afterwards the process is as it was, so that a test can run several commands. What only a new
    process shows is tested with ``started``: libraries that read the environment when they are
    loaded, signals, exit codes of a crash.
    """
    with ExitStack() as stack:
        stack.enter_context(_same_process())
        os.environ.update(environment)
        if cwd is not None:
            os.chdir(cwd)
        out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        with _redirected(out.fileno(), err.fileno()):
            code = exit_code(arguments)
        done = Done(code, *(_text(file) for file in (out, err)))
    if code and ASKED in os.environ:
        _try_advice(done, arguments, cwd or Path.cwd(), environment)
    return done


def _try_advice(
    done: Done, arguments: tuple[str, ...], folder: Path, environment: dict[str, str]
) -> None:
    """Run the command again as the line of its error advises."""

    def again(words: list[str]) -> str:
        copy = Copy(folder)
        try:
            return _line(paceline(*copy.words(words), cwd=copy.path, **environment))
        finally:
            copy.remove()

    try_advice(arguments, _line(done), again)


def _line(done: Done) -> str:
    """Return the line of a command's error, or what else it said last; "" if it succeeded."""
    lines = done.err.strip().splitlines() if done.code else []
    return next((line for line in lines if line.startswith("error[")), "".join(lines[-1:]))


def config_of(*words: str, config_dir: str | None = None) -> dict[str, Any]:
    """Compose and check what ``paceline train WORDS`` would train, without training it."""
    with _same_process():
        return composed([literal(word) for word in words], granted(list(words)), config_dir)[0]


def refusal_of(*words: str, config_dir: str | None = None) -> str:
    """Return the line that refuses the configuration of ``paceline train WORDS``."""
    with pytest.raises(errors.PacelineError) as caught:
        config_of(*words, config_dir=config_dir)

    def again(words: list[str]) -> str:
        if "--help" in words:
            return ""
        try:
            config_of(*words[1:], config_dir=config_dir)
        except errors.PacelineError as error:
            return str(error)
        return ""

    try_advice(("train", *words), str(caught.value), again)
    return str(caught.value)


def started(
    *arguments: str, cwd: Path | None = None, limit_s: int = 120, **environment: str
) -> Done:
    """Run ``paceline ARGUMENTS`` in a new process that loads everything itself."""
    words = [sys.executable, "-m", "framework", *arguments]
    env = {**os.environ, **environment}
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=limit_s, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def exit_code(arguments: tuple[str, ...]) -> int:
    """Run a command as ``framework.__main__`` does, and return the exit code of its process."""
    try:
        code: object = main.run(list(arguments))
        stopping._end_owners()
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001  # the test reads the traceback
        traceback.print_exc()
        code = 1
    return code if isinstance(code, int) else int(code is not None)


@contextmanager
def _same_process() -> Generator[None]:
    """Restore what a command changes in its process: a process runs one command in real life."""
    folder, environment, words = os.getcwd(), dict(os.environ), sys.argv
    places, modules = list(sys.path), set(sys.modules)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    repeats = torch.are_deterministic_algorithms_enabled()
    precedence._noted.clear()
    try:
        with warnings.catch_warnings():
            warnings.resetwarnings()  # pytest makes errors of them
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = words
        sys.path[:] = places
        for number, handler in handlers.items():
            signal.signal(number, handler)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        if torch.are_deterministic_algorithms_enabled() != repeats:
            torch.use_deterministic_algorithms(repeats)
        _forget_modules(modules)
        _clear_caches()


@contextmanager
def _redirected(out: int, err: int) -> Generator[None]:
    """Send what Python and C write to two files inside the block."""
    streams = sys.stdout, sys.stderr
    for stream in streams:
        stream.flush()
    saved = [(number, os.dup(number)) for number in (1, 2)]
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = streams
        for number, copy in saved:
            os.dup2(copy, number)
            os.close(copy)


def _forget_modules(known: set[str]) -> None:
    """Unload the modules of the test's own folders: the next test writes others of that name."""
    for name in set(sys.modules) - known:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and not os.path.abspath(file).startswith(LIBRARIES):
            del sys.modules[name]


def _clear_caches() -> None:
    """Forget what functions of ours remember, by relative paths for example."""
    for name, module in list(sys.modules.items()):
        if name.startswith("framework"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def _text(file) -> str:
    file.seek(0)
    return file.read().decode()


def losses(run_dir: Path, split: str = "train") -> list[float]:
    """Return the loss of every report of a run."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if line["split"] == split]


def write_linear(folder: Path) -> None:
    """Write ``recipes=linear``, a logistic regression that repeats itself, for ``--config-dir``."""
    for name in ("model", "recipes"):
        (folder / name).mkdir(parents=True)
    (folder / "model" / "linear.yaml").write_text(
        "# one layer\n_target_: torch.nn.Sequential\n_args_:\n"
        "  - {_target_: torch.nn.Flatten}\n"
        "  - {_target_: torch.nn.Linear, in_features: 64, out_features: 10}\n"
    )
    (folder / "recipes" / "linear.yaml").write_text(
        "# @package _global_\ndefaults:\n  - digits\n  - override /model: linear\n"
    )


def is_one_error_line(done: Done, number: str) -> bool:
    """Return whether the command ended in one error line of that number and no traceback."""
    lines = [line for line in done.err.splitlines() if line.startswith("error[")]
    return (
        len(lines) == 1
        and lines[0].startswith(f"error[{number}]: ")
        and "Traceback" not in done.err + done.out
    )
