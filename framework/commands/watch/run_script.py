"""Run somebody's script as Python would: same arguments, paths, exit code and traceback."""

import atexit
import builtins
import importlib.util
import os
import signal
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, NoReturn, final

import framework
from framework.errors import ConfigError
from framework.system.stopping import NUMBERS, die_by

IMPORTER = "<frozen importlib"
OURS = str(Path(__file__).parent) + os.sep
ROOT = str(Path(framework.__file__).parents[1])


class Script(NamedTuple):
    """What to run.

    Attributes:
        name: The path of a file, or the name of a module.
        is_module: Whether ``name`` is a module, as in ``python -m``.
        arguments: The script's own words.
    """

    name: str
    is_module: bool
    arguments: list[str]


def run_script(script: Script) -> BaseException | None:
    """Run the script as ``__main__``. Return the exception that ended it, if any.

    Raises:
        ConfigError: C359 if there is no such script, or its folder hides our package.
    """
    _set_paths(script)
    module = _module_of(script)
    assert module.__file__ is not None
    sys.argv = [script.name, *script.arguments]
    if script.is_module:
        sys.argv[0] = module.__file__
    # It stays in place: what the script made is pickled and examined after its end.
    sys.modules["__main__"] = module
    _restore_signals()
    try:
        _ScriptLoader("__main__", module.__file__).exec_module(module)
    except BaseException as error:  # noqa: BLE001  # whatever ends a script
        return _without_our_frames(error)
    return None


def end_like(error: BaseException | None) -> NoReturn:
    """End this process with the output and the exit code of a script that ended with ``error``."""
    if error is None:
        raise SystemExit(0)
    if isinstance(error, SystemExit):
        raise error
    sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        die_by(signal.SIGINT)
    raise SystemExit(1)


def _set_paths(script: Script) -> None:
    """Make ``sys.path`` what the script expects. Our own package stays importable."""
    folder = os.getcwd()
    if not script.is_module:
        folder = os.path.dirname(os.path.realpath(script.name))
    mine = os.path.join(folder, "framework")
    if (os.path.isdir(mine) or os.path.isfile(f"{mine}.py")) and folder != ROOT:
        what = "hides the package 'framework' of Paceline"
        raise ConfigError(359, mine, what, "rename it; watch cannot load both")
    if not sys.flags.safe_path:
        sys.path[0] = folder
    if ROOT not in sys.path:
        sys.path.append(ROOT)


@final
class _ScriptLoader(SourceFileLoader):
    """Runs a file as Python runs its main script: no bytecode is written."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        pass


def _module_of(script: Script) -> ModuleType:
    """Return the module ``__main__`` for the script, which has not run yet."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    if script.is_module:
        module.__spec__ = _spec_of(script.name)
        module.__package__ = module.__spec__.parent
        module.__file__ = module.__spec__.origin
    else:
        module.__file__ = os.path.abspath(script.name)
    assert module.__file__ is not None
    module.__loader__ = SourceFileLoader("__main__", module.__file__)
    try:
        Path(module.__file__).read_bytes()
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise ConfigError(359, script.name, what, "give the path of a Python script") from error
    return module


def _spec_of(name: str) -> ModuleSpec:
    """Return the spec of the module ``name``, or of its ``__main__`` if it is a package."""
    spec = None
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        raise ConfigError(359, f"-m {name}", "no such module", "run it from its project's folder")
    return spec


def _restore_signals() -> None:
    """Give the signals the meaning that they have in a new Python process."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _without_our_frames(error: BaseException) -> BaseException:
    """Remove our frames from the tracebacks of the error, its causes and its contexts."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        part = waiting.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        part.__traceback__ = _kept(part.__traceback__)
        waiting += [part.__cause__, part.__context__]
    return error


def _kept(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without frames of this folder, and without those that start a script."""
    frames: list[TracebackType] = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(OURS) and (frames or not file.startswith(IMPORTER)):
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for frame in reversed(frames):
        # Not a new one: Python knows no line for some instructions, and takes no traceback without.
        frame.tb_next = kept
        kept = frame
    return kept
