"""``paceline COMMAND [group=choice] [key=value] ...``: start the command that is named."""

import os
import sys
import traceback
from pathlib import Path

from framework import __version__, errors
from framework.cli import other_words, signals
from framework.cli.arguments import literal
from framework.system.imports import load
from framework.system.stopping import ends_on_signals, leave

COMMANDS = {
    "train": "train a model; every part is a choice",
    "doctor": "say in ten seconds what helps or hurts on this machine",
    "diagnose": "measure what limits a run, and say what to do about it",
    "watch": "run somebody's PyTorch script unchanged, and say where its time goes",
    "tune": "choose workers, loader and depth for this machine, or the batch size, by measuring",
    "pack": "pack images, arrays or records of your own into one HDF5 or LMDB store",
    "inspect": "show what a store holds, with a picture of some records",
    "verify": "compare every record of stores with its checksum",
    "evaluate": "evaluate the model of a run: its own validation again, or any other data",
    "predict": "predict with the model of a run: of files, tables or stores",
    "export": "export the model of a run: safetensors, ONNX, torch.export, compiled, Hugging Face",
    "replay": "take a step of a run again: its records, losses and gradients, for a spike or a NaN",
    "runs": "list runs with their choices and results, or send what a server missed",
    "new": "write a small project of your own that trains at once",
    "trust": "let configurations in this folder call its packages, from now on",
    "report": "one page of runs, sweeps and benches: where the time went, and what was learned",
    "bench": "measure a grid of choices, each in processes of its own, or compare two such files",
}
LIKE_TRAIN = ("bench", "diagnose", "tune")  # they take the words of train, and complete them
# The words of somebody else's program, and of commands that Hydra does not compose.
AS_TYPED = (
    *("doctor", "export", "inspect", "new", "replay", "report", "runs", "trust", "verify", "watch"),
)
COMPLETION = (["-sc"], ["--shell-completion"])
USAGE = """usage: paceline COMMAND [group=choice] [key=value] ...

{commands}

'paceline COMMAND --help' lists the groups, their choices and the keys.
Shell completion: eval "$(paceline -sc install=bash)"   (or zsh, fish)"""


def main() -> None:
    """Run the words of this process's command line."""
    try:
        code = run(sys.argv[1:])
    except Exception as error:  # noqa: BLE001  # unforeseen
        if errors.lacks_memory(error):  # while a library was loaded
            refusal = errors.memory_error(error)
            errors.say(str(refusal), sys.stderr)
            leave(refusal.exit_code)
        errors.say(traceback.format_exc(), sys.stderr)
        code = 1
    leave(code)


def run(arguments: list[str]) -> int:
    """Run one command line. Print an error as one line, and return the exit code."""
    with ends_on_signals():
        try:
            code = _dispatch(arguments)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            return signals.closed_output_code()
        except errors.PacelineError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        except OSError as error:
            if error.errno is None or error.filename is None:
                raise
            # Hydra raises it when it makes the run directory.
            fix = "choose another place: hydra.run.dir=..., or another directory to start in"
            what = f"cannot write: {error.strerror}"
            print(errors.ResourceError(101, str(error.filename), what, fix), file=sys.stderr)
            return errors.ResourceError.exit_code
        except KeyboardInterrupt:  # somebody's code raised it: our handlers raise nothing
            print("interrupted", file=sys.stderr)
            return errors.EXIT_INTERRUPTED


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] in COMPLETION:  # Hydra completes one program, and never sees the command
        sys.argv[0] = "paceline"
        words = os.environ.get("COMP_LINE", "").split(" ")
        if len(words) > 2 and words[1] in COMMANDS:
            os.environ["COMP_LINE"] = " ".join([words[0], *words[2:]])
            return _start(words[1], arguments)
        if arguments[1:] and arguments[1].startswith("query"):
            print(" ".join(COMMANDS))
            return 0
        return _start("train", arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        commands = "\n".join(f"  {name:8} {text}" for name, text in COMMANDS.items())
        print(USAGE.format(commands=commands))
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"paceline {__version__}")
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        what = f"not a command{errors.did_you_mean(command, list(COMMANDS))}"
        raise errors.ConfigError(120, command, what, f"choose {', '.join(COMMANDS)}")
    if command not in AS_TYPED:
        rest = [literal(word) for word in rest]
    if command == "train" or command in LIKE_TRAIN:
        other_words.refuse_options(rest)
    return _start(command, rest)


def _start(command: str, arguments: list[str]) -> int:
    if arguments[:1] in COMPLETION and command in LIKE_TRAIN:
        command = "train"
    name = f"framework.commands.{command}"
    if not Path(__file__).with_name("commands").joinpath(f"{command}.py").is_file():
        name += f".{command}"  # a command of several files is a folder
    return load(name).main(arguments)
