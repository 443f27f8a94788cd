"""The command ``paceline watch``: run a script as Python would, and report its steps."""

import atexit
import builtins
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, final

import framework
from framework.cli.arguments import check_output, read_keys
from framework.config.schema import Rule
from framework.errors import ConfigError, PacelineError, did_you_mean, say
from framework.system.stopping import NUMBERS, die_by

RULES = {
    "steps": Rule(int, 1, 1_000_000_000, number=358),
    "output": Rule(str | None, means="the name of a file", number=358),
}
USAGE = """usage: paceline watch [key=value] ... SCRIPT [its own words] ...
       paceline watch [key=value] ... -m MODULE [its own words] ...

Runs a PyTorch script as Python does, unchanged, and prints at its end where its steps spent time
and what would make them faster. Its output and its exit code stay the same; the report goes to
stderr. Under torchrun, put it before the script, and rank 0 reports:
torchrun --nproc-per-node 2 --no-python paceline watch train.py

keys, which stand before the script
  steps: null          # report after so many steps; the script then continues without being watched
  output: null         # JSON file for all figures"""
OURS = str(Path(__file__).parent) + os.sep
ROOT = str(Path(framework.__file__).parents[1])


class WatchWords(NamedTuple):
    script: str  # the path of a file, or the name of a module
    is_module: bool  # as in ``python -m``
    arguments: list[str]  # the script's own words
    steps: int = 0
    output: str | None = None


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    asked = parse_watch(arguments)
    watch = Watch(asked)
    if "torch" in sys.modules:
        watch.begin()
    else:  # nothing may import it before the script, which may set variables that it reads
        sys.meta_path.insert(0, _Finder("torch", watch.begin))
    error = run_script(asked)
    try:
        watch.finish(error)
    except KeyboardInterrupt:
        watch.say("paceline watch: interrupted, so the report is not complete")
    except Exception as failure:  # noqa: BLE001  # the script's exit code counts
        watch.say(f"paceline watch: the report failed ({type(failure).__name__}: {failure})")
    # End with the output and the exit code of the script.
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


def parse_watch(arguments: Sequence[str]) -> WatchWords:
    """Separate our keys from the script and its words. ConfigError C358 for a wrong word."""
    own: dict[str, str] = {}
    words = list(arguments)
    while words and words[0].partition("=")[1] and not os.path.exists(words[0]):
        key, _, value = words.pop(0).partition("=")
        if key not in RULES:
            what = f"is no key of watch{did_you_mean(key, tuple(RULES))}"
            raise ConfigError(358, f"{key}={value}", what, "see 'paceline watch --help'")
        own[key] = value
    is_module = words[:1] == ["-m"]
    if is_module:
        words.pop(0)
    if not words or words[0].startswith("-"):
        where = words[0] if words else "watch"
        raise ConfigError(358, where, "names no script", "paceline watch train.py")
    asked = WatchWords(words[0], is_module, words[1:], **read_keys(own, RULES))
    check_output(asked.output, 358)
    # The script may change the directory.
    return asked._replace(output=asked.output and os.path.abspath(asked.output))


@final
class Watch:
    """Watches a script, from the import of torch to the report."""

    def __init__(self, asked: WatchWords) -> None:
        self._asked = asked
        self._hooks: Any = None
        self._machine: Any = None
        self._is_first = os.environ.get("RANK", "0") == "0"

    def begin(self) -> None:
        from framework.commands.watch import torch_hooks  # noqa: PLC0415
        from framework.measure.usage import MachineWatch  # noqa: PLC0415

        self._machine = MachineWatch()
        self._hooks = torch_hooks.TorchHooks(self._asked.steps, self._report)
        self._hooks.install()

    def finish(self, error: BaseException | None) -> None:
        """Report, unless this was done already. ``error`` ended the script."""
        if self._hooks is None:
            self.say("paceline watch: the script has not imported torch")
            return
        try:
            if self._hooks.is_on:
                self._hooks.remove()
                failed = error is not None and not isinstance(error, SystemExit | KeyboardInterrupt)
                self._report(may_read=not failed)
        finally:
            self._hooks.loader = None  # ends its workers, as the end of the script would

    def say(self, line: str) -> None:
        if self._is_first:
            say(line, sys.stderr)

    def _report(self, may_read: bool = True) -> None:
        if not self._is_first:
            return
        self._hooks.end()  # before anything is imported, which takes time
        from framework.commands.watch.measure_script import gather_script_facts  # noqa: PLC0415
        from framework.diagnosis.print_facts import show_watch, watch_json  # noqa: PLC0415
        from framework.system.durable import write_json  # noqa: PLC0415

        facts = gather_script_facts(self._hooks, self._machine.lap(), may_read)
        sys.stdout.flush()
        with redirect_stdout(sys.stderr):
            show_watch(facts)
            if self._asked.output is not None:
                try:
                    write_json(Path(self._asked.output), watch_json(facts))
                    say(f"all figures: {self._asked.output}")
                except PacelineError as error:
                    say(str(error))
        sys.stderr.flush()


@final
@dataclass(eq=False)
class _Finder(MetaPathFinder):
    """Finds a module as Python does, and calls ``action`` when its loader has run it."""

    name: str
    action: Callable[[], object]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                run(module)
                self.action()

            loader.exec_module = exec_module
        return spec


@final
class _ScriptLoader(SourceFileLoader):
    """Runs a file as Python runs its main script: no bytecode is written."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        pass


def run_script(asked: WatchWords) -> BaseException | None:
    """Run the script as ``__main__``, and return what ended it. C359 if it cannot run."""
    folder = os.getcwd()
    if not asked.is_module:
        folder = os.path.dirname(os.path.realpath(asked.script))
    mine = os.path.join(folder, "framework")
    if (os.path.isdir(mine) or os.path.isfile(f"{mine}.py")) and folder != ROOT:
        what = "hides the package 'framework' of Paceline"
        raise ConfigError(359, mine, what, "rename it; watch cannot load both")
    if not sys.flags.safe_path:
        sys.path[0] = folder
    if ROOT not in sys.path:  # our package stays importable
        sys.path.append(ROOT)
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    file = os.path.abspath(asked.script)
    if asked.is_module:
        spec = None
        with suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(asked.script)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{asked.script}.__main__")
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            fix = "run it from its project's folder"
            raise ConfigError(359, f"-m {asked.script}", "no such module", fix)
        module.__spec__ = spec
        module.__package__ = spec.parent
        file = str(spec.origin)
    module.__file__ = file
    module.__loader__ = SourceFileLoader("__main__", file)
    try:
        Path(file).read_bytes()
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise ConfigError(359, asked.script, what, "give the path of a Python script") from error
    sys.argv = [file if asked.is_module else asked.script, *asked.arguments]
    # It stays in place: what the script made is pickled and examined after its end.
    sys.modules["__main__"] = module
    for number in NUMBERS:  # as in a new Python process
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        _ScriptLoader("__main__", file).exec_module(module)
    except BaseException as error:  # noqa: BLE001  # whatever ends a script
        return _without_our_frames(error)
    return None


def _without_our_frames(error: BaseException) -> BaseException:
    """Remove our frames, and those that start a script, from all tracebacks of an error."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        part = waiting.pop()
        if part is None or id(part) in seen:
            continue
        seen.add(id(part))
        waiting += [part.__cause__, part.__context__]
        frames: list[TracebackType] = []
        trace = part.__traceback__
        while trace is not None:
            file = trace.tb_frame.f_code.co_filename
            if not file.startswith(OURS) and (frames or not file.startswith("<frozen importlib")):
                frames.append(trace)
            trace = trace.tb_next
        # Not new ones: Python knows no line for some instructions, and takes no traceback without.
        for frame, following in zip(frames, [*frames[1:], None], strict=False):
            frame.tb_next = following
        part.__traceback__ = frames[0] if frames else None
    return error
