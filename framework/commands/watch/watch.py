"""The command ``paceline watch``."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, final

from framework.cli.arguments import check_output, read_keys
from framework.commands.watch.run_script import Script, end_like, run_script
from framework.config.rule import Rule
from framework.errors import ConfigError, PacelineError, did_you_mean, say

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


class WatchWords(NamedTuple):
    """The command line."""

    script: Script
    steps: int = 0
    output: str | None = None


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    asked = parse_watch(arguments)
    watch = Watch(asked)
    when_imported("torch", watch.begin)
    error = run_script(asked.script)
    try:
        watch.finish(error)
    except KeyboardInterrupt:
        watch.say("paceline watch: interrupted, so the report is not complete")
    except Exception as failure:  # noqa: BLE001  # the script's exit code counts
        watch.say(f"paceline watch: the report failed ({type(failure).__name__}: {failure})")
    end_like(error)
    return None


def parse_watch(arguments: Sequence[str]) -> WatchWords:
    """Separate our keys from the script and its words.

    Raises:
        ConfigError: C358 for a wrong key or value, or without a script.
    """
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
    asked = WatchWords(Script(words[0], is_module, words[1:]), **read_keys(own, RULES))
    check_output(asked.output, 358)
    # The script may change the directory.
    output = asked.output and os.path.abspath(asked.output)
    return asked._replace(output=output)


@final
class Watch:
    """What watches a script, from the import of torch to the report."""

    def __init__(self, asked: WatchWords) -> None:
        self._asked = asked
        self._hooks: Any = None
        self._machine: Any = None

    def begin(self) -> None:
        """Install the hooks. Torch has just been imported."""
        from framework.commands.watch.step_recorder import StepRecorder  # noqa: PLC0415
        from framework.commands.watch.torch_hooks import TorchHooks  # noqa: PLC0415
        from framework.measure.machine_watch import MachineWatch  # noqa: PLC0415

        self._machine = MachineWatch()
        self._hooks = TorchHooks(StepRecorder(), self._asked.steps, self._report)
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
                self._report(may_read=not failed, may_call=not failed)
        finally:
            self._hooks.recorder.loader = None  # ends its workers, as the end of the script would

    def say(self, line: str) -> None:
        """Print a line, if this is the first rank."""
        if os.environ.get("RANK", "0") == "0":
            say(line, sys.stderr)

    def _report(self, may_read: bool = True, may_call: bool = False) -> None:
        if os.environ.get("RANK", "0") != "0":
            return
        recorder = self._hooks.recorder
        recorder.end()  # before anything is imported, which takes time
        from framework.commands.watch.measure_script import gather_script_facts  # noqa: PLC0415
        from framework.commands.watch.print_watch import show_watch, watch_json  # noqa: PLC0415
        from framework.system.durable import write_json  # noqa: PLC0415

        machine = self._machine.lap()
        facts = gather_script_facts(self._hooks, machine, may_read, may_call)
        sys.stdout.flush()
        with redirect_stdout(sys.stderr):
            show_watch(facts)
            if self._asked.output is not None:
                try:
                    write_json(Path(self._asked.output), watch_json(facts))
                except PacelineError as error:
                    say(str(error))
                else:
                    say(f"all figures: {self._asked.output}")
        sys.stderr.flush()


def when_imported(name: str, action: Callable[[], object]) -> None:
    """Call ``action`` once, when the module ``name`` is imported, or now if it already is.

    A script may set environment variables that torch reads while it is imported. So nothing may
    import torch before the script does.
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Finder(name, action))


@final
class _Finder(MetaPathFinder):
    """Finds a module as Python does, and calls ``action`` when its loader has run it."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self.name = name
        self.action = action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                run(module)
                self.action()

            loader.exec_module = exec_module
        return spec
