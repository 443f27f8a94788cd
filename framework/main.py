"""``paceline COMMAND [group=choice] [key=value] ...``"""

import os
import sys
from importlib import import_module

from framework import __version__
from framework.cli.arguments import check_words, literal
from framework.cli.signals import reader_has_gone
from framework.config.targets import did_you_mean
from framework.errors import EXIT_INTERRUPTED, ConfigError, PacelineError, ResourceError
from framework.system.stopping import ends_on_signals, leave

COMMANDS = {
    "train": "train a model; every part is a choice",
    "diagnose": "measure what limits a run, and say what to do about it",
    "tune": "choose workers, loader and depth for this machine, or the batch size, by measuring",
    "pack": "pack images, arrays or records of your own into one HDF5 or LMDB store",
    "inspect": "show what a store holds, with a picture of some records",
    "verify": "compare every record of stores with its checksum",
    "report": "one page of runs, sweeps and benches: where the time went, what was learned, what differs",
    "bench": "measure a grid of choices, each in processes of its own, or compare two such files",
}
USAGE = """usage: paceline COMMAND [group=choice] [key=value] ...

{commands}

'paceline COMMAND --help' lists the groups, their choices and the keys.
Shell completion: eval "$(paceline -sc install=bash)"   (or zsh, fish)"""


def main() -> None:
    """The console script."""
    leave(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code. An error is one line on standard error."""
    with ends_on_signals():
        return _told(arguments)


def _told(arguments: list[str]) -> int:
    try:
        return _printed(arguments)
    except PacelineError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:  # Hydra's, when it makes the run directory
        if error.errno is None or error.filename is None:
            raise
        where, fix = (
            str(error.filename),
            "choose another place: hydra.run.dir=..., or another directory to start in",
        )
        print(ResourceError(101, where, f"cannot write: {error.strerror}", fix), file=sys.stderr)
        return ResourceError.exit_code
    except KeyboardInterrupt:  # raised by somebody's code: our handlers raise nothing
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _printed(arguments: list[str]) -> int:
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return reader_has_gone()
    return code


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["-sc"] or arguments[:1] == ["--shell-completion"]:
        return _complete(arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(
            USAGE.format(
                commands="\n".join(f"  {name:8} {text}" for name, text in COMMANDS.items())
            )
        )
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"paceline {__version__}")
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        raise ConfigError(
            120,
            command,
            f"not a command{did_you_mean(command, list(COMMANDS))}",
            f"choose {', '.join(COMMANDS)}",
        )
    check_words(rest)
    return import_module(f"framework.commands.{command}.{command}").main(
        [literal(word) for word in rest]
    )


def _complete(arguments: list[str]) -> int:
    """Hydra completes one program; the command is taken out of the line before Hydra sees it."""
    sys.argv[0] = "paceline"
    words = os.environ.get("COMP_LINE", "").split(" ")
    if len(words) > 1 and words[1] in COMMANDS and len(words) > 2:
        os.environ["COMP_LINE"] = " ".join([words[0], *words[2:]])
        return import_module(f"framework.commands.{words[1]}.{words[1]}").main(arguments)
    if arguments[1:] and arguments[1].startswith("query"):
        print(" ".join(COMMANDS))
        return 0
    return import_module("framework.commands.train.train").main(arguments)
