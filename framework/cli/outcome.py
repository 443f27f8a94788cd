"""Commands without groups of choices, whose options are a dataclass; how every command ended."""

import errno
import json
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, field, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from framework import errors
from framework.cli.tables import print_run
from framework.config.schema import AFTER_STEP, Rule
from framework.errors import ConfigError
from framework.system import run_log, user_code
from framework.system.run_dir import ENDED, NEXT_FACTS, redacted, write_object
from framework.system.stopping import message_if_stopped, undone

T = TypeVar("T")
COMPLETION = ("-sc", "--shell-completion")
ALL = 1 << 20  # characters
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EROFS, errno.EPERM)
NOT_REPEATABLE = " does not have a deterministic implementation"  # behind an operator's name
# What torch says when another rank is gone.
PEER_LOST = "gloo|NCCL|Application timeout caused pair closure|Connection (closed|reset) by peer"


def option(default: Any = MISSING, about: str = "", *, key: str = "", **rule: Any) -> Any:
    """Return the field of an option, which must be given if it has no default.

    ``about`` is its line of ``--help``, ``key`` its key if that is not the field's name, and
    ``rule`` what ``Rule`` takes beside the type, such as ``least=1`` or ``choices=("a", "b")``.
    """
    metadata = {"about": about, "key": key, "rule": rule}
    if isinstance(default, list):
        return field(default_factory=partial(list, default), metadata=metadata)
    return field(default=default, metadata=metadata)


def rules_of(kind: type) -> dict[str, Rule]:
    """Return the rule of each option of a dataclass by its key, in the order of the fields."""
    hints = get_type_hints(kind)
    return {
        own.metadata["key"] or own.name: Rule(hints[own.name], **own.metadata["rule"])
        for own in fields(kind)
    }


class RunOutcome(NamedTuple):
    """The content of ``exit.json``."""

    code: int  # as in docs/errors.md
    reason: str  # one line
    step: int | None = None  # the last that was taken
    rank: int | None = None  # the first that failed
    checkpoint: str | None = None  # the newest state, from which the run can continue


def run_options(
    command: str,
    words: Sequence[str],
    kind: type[T],
    action: Callable[[T, Path], RunOutcome],
    plain: str = "",
) -> int:
    """Run a command with the options that its words set, and return the exit code.

    The docstring of ``kind`` heads the page of ``--help``. The action gets a directory below
    ``outputs/``, which it makes if it writes. Words without ``=`` stand for the key ``plain``.
    """
    rules = rules_of(kind)
    if words[:1] and words[0] in COMPLETION:
        begun = os.environ.get("COMP_LINE", "").rpartition(" ")[2]
        print(" ".join(f"{key}=" for key in rules if key.startswith(begun)))
        return 0
    if "--help" in words or "-h" in words:
        shown = plain.upper()
        if plain and rules[plain].kind == list[str]:
            shown = f"{shown.removesuffix('S')} ..."
        print(f"usage: paceline {command} {shown} [key=value] ...".replace("  ", " "))
        print(f"\n{kind.__doc__}\n\nkeys")
        settings = [f"{key}: {default}" for key, default in _defaults(kind).items()]
        width = max(map(len, settings))
        for setting, own in zip(settings, fields(kind), strict=True):  # pyright: ignore[reportArgumentType]
            print(f"  {setting:{width}}  # {own.metadata['about']}")
        return 0
    options = read_options(command, words, kind, plain)
    return run_action(partial(action, options), Path("outputs", command, time_stamp()))


def time_stamp() -> str:
    """Return DATE/TIME-PID, which differs for two commands that start at the same time."""
    return f"{datetime.now():%Y-%m-%d/%H-%M-%S.%f}-{os.getpid()}"  # noqa: DTZ005  # the user's own clock


def read_options(command: str, words: Sequence[str], kind: type[T], plain: str = "") -> T:
    """Return the options that ``words`` set.

    ConfigError C100 (plain words), C102 (unknown key), C103 (missing key), C124 (unknown
    ``--option``), or the number of an option's rule.
    """
    rules = rules_of(kind)
    given: dict[str, Any] = {}
    texts: list[str] = []
    for word in words:
        key, sign, value = word.partition("=")
        flag = rules.get(key.removeprefix("--"))
        if word.startswith("--") and flag is not None and flag.kind is bool and not sign:
            given[key.removeprefix("--")] = True
        elif word.startswith("-"):
            what = f"no such option{errors.did_you_mean(key, ['--help', '--json'])}"
            raise ConfigError(124, key, what, "see --help; keys are given as key=value")
        elif not sign or os.path.exists(word):  # a path may have "=" in its name
            texts.append(word)
        elif key not in rules:
            what = f"no such key{errors.did_you_mean(key, list(rules))}"
            raise ConfigError(102, key, what, f"see 'paceline {command} --help'")
        elif value[:1] not in ("[", "{") or set(rules[key].kinds) <= {str, type(None)}:
            given[key] = rules[key].read(key, value)  # literally, if the option may have a text
        else:
            try:
                config = OmegaConf.from_dotlist([f"value={value}"])
                read: Any = OmegaConf.to_container(config, resolve=False)
            except (YAMLError, OmegaConfBaseException) as error:
                raise rules[key].error(key, value) from error
            given[key] = read["value"]
            rules[key].check(key, given[key])
    if texts:
        where = " ".join(texts)
        if not plain:
            fix = f"see 'paceline {command} --help'"
            raise ConfigError(100, where, "is neither an option nor key=value", fix)
        if plain in given:
            raise ConfigError(100, where, f"stands beside {plain}=", "give one or the other")
        given[plain] = texts
        if rules[plain].kind != list[str]:
            given[plain] = texts[0]
            if len(texts) > 1:
                fix = f"{command} one at a time"
                raise ConfigError(100, where, f"names more than one {plain}", fix)
    defaults = _defaults(kind)
    if missing := [key for key in defaults if defaults[key] == "???" and key not in given]:
        fix = f"add {' '.join(f'{key}=...' for key in missing)}"
        raise ConfigError(103, ", ".join(missing), "must be given", fix)
    pairs = zip(fields(kind), rules, strict=True)  # pyright: ignore[reportArgumentType]
    return kind(**{own.name: given[key] for own, key in pairs if key in given})


def _defaults(kind: type) -> dict[str, str]:
    """Return the default of each key as YAML has it, and ``???`` if it must be given."""
    defaults: dict[str, str] = {}
    for key, own in zip(rules_of(kind), fields(kind), strict=True):
        default = "???" if own.default is MISSING else own.default
        if own.default_factory is not MISSING:
            default = own.default_factory()
        defaults[key] = default if isinstance(default, str) else json.dumps(default)
    return defaults


def run_action(action: Callable[[Path], RunOutcome], run_dir: Path | None = None) -> int:
    """Do one job of a command that does not train. Print why it failed, and return its exit code.

    ``run_dir`` is by default the directory that Hydra made. An empty one is removed afterwards.
    """
    if run_dir is None:
        from hydra.core.hydra_config import HydraConfig  # noqa: PLC0415  # takes 0.1 s to load

        run_dir = Path(HydraConfig.get().runtime.output_dir)
    with undone(lambda _: discard_if_empty(run_dir)):
        outcome = outcome_of(partial(action, run_dir), run_dir, show_traceback=False)
    discard_if_empty(run_dir)
    return report_failure(outcome)


def report_failure(outcome: RunOutcome) -> int:
    """Print why an action failed, if it did. Return the exit code."""
    if outcome.code:
        errors.say(outcome.reason, sys.stderr)
    return outcome.code


def outcome_of(
    action: Callable[[], RunOutcome],
    run_dir: Path,
    show_traceback: bool,
    packages: Sequence[str] = (),
) -> RunOutcome:
    """Do the action and turn an error into its line.

    ``run_dir`` gets ``debug.log`` with the traceback of an unknown error or one of the user's code,
    which ``packages`` begin if it is installed, and with those of all ranks if one hangs.
    """
    try:
        return action()
    except BrokenPipeError:
        raise  # the job's starter handles it
    except KeyboardInterrupt:  # somebody's code raised it: our handlers raise nothing
        return RunOutcome(errors.EXIT_INTERRUPTED, f"stopped at once; {newest_checkpoint(run_dir)}")
    except (Exception, SystemExit) as raised:  # noqa: BLE001  # the last resort
        error = raised
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGCHLD"):
        # torch's handler would raise once more when the next worker ends.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    known = _known(error, packages)
    if known is None and isinstance(error, SystemExit):
        raise error
    text = "".join(traceback.format_exception(error))
    if show_traceback:
        errors.say(text, sys.stderr)
    line = str(known or f"error[X100]: {type(error).__name__}: {errors.words_of(error)}")
    hint = ""
    if known is None or isinstance(known, errors.UserCodeError | errors.HungRankError):
        hint = "; debug=trace shows more"
        log = run_dir / "debug.log"
        with suppress(OSError):  # the directory may be what is gone
            run_dir.mkdir(parents=True, exist_ok=True)
            log.write_text(errors.escaped(redacted(text)), "utf-8", "surrogateescape")
            hint = f"; the traceback is in {log}"
    notes = [str(note) for part in _chain(error) for note in getattr(part, "__notes__", ())]
    steps = [int(note.removeprefix(AFTER_STEP)) for note in notes if note.startswith(AFTER_STEP)]
    rank = known.rank if isinstance(known, errors.HungRankError) else None
    code = 1 if known is None else known.exit_code
    return RunOutcome(code, redacted(line) + hint, next(iter(steps), None), rank)


@contextmanager
def recorded_if_stopped(run_dir: Path) -> Generator[None]:
    """Write ``exit.json`` and name the newest state if a signal ends the process inside the block.

    This does without torch, whose import the signal may interrupt.
    """
    message = message_if_stopped(lambda by: f"stopped at once{by}; {newest_checkpoint(run_dir)}")
    with message, undone(lambda stop: _write_end(RunOutcome(*stop), run_dir)):
        yield


def newest_checkpoint(run_dir: Path) -> str:
    """Say which state a run has left."""
    path = _newest(run_dir)
    return "nothing was saved yet" if path is None else f"{path.name} stands"


def _newest(run_dir: Path) -> Path | None:
    return max(run_dir.glob("checkpoints/step-*.pt"), key=os.path.getmtime, default=None)


def _write_end(outcome: RunOutcome, run_dir: Path) -> None:
    (run_dir / NEXT_FACTS).unlink(missing_ok=True)
    newest = _newest(run_dir)
    whole = outcome._replace(checkpoint=newest and str(newest.relative_to(run_dir)))
    write_object(run_dir / ENDED, whole._asdict())


def conclude(outcome: RunOutcome, run_dir: Path, short: bool) -> int:
    """Write ``exit.json``, print how the run went and why it failed, and return the exit code."""
    # The disk may be full, or the directory removed: the printed line still says what happened.
    with suppress(errors.PacelineError, OSError):
        _write_end(outcome, run_dir)
    print_run(run_dir, outcome.code, short)
    log_end(outcome)
    return report_failure(outcome)


def log_end(outcome: RunOutcome) -> None:
    """Write to ``train.log`` how a process of a run ended."""
    is_good = outcome.code in (0, errors.EXIT_PREEMPTED, errors.EXIT_INTERRUPTED)
    run_log.OWN.log(logging.INFO if is_good else logging.ERROR, "%s", outcome.reason)


def discard_if_empty(run_dir: Path) -> None:
    """Remove the directory of a run that never was, and the empty ones of ours above it."""
    with suppress(OSError):
        run_dir.rmdir()
        for folder in list(run_dir.parents)[:2]:
            if "outputs" in folder.parts[:-1]:  # never a folder that may be the user's own
                folder.rmdir()


def _chain(error: BaseException | None) -> list[BaseException]:
    """Return the error, its cause, and so on. Each once: an error may be its own context."""
    chain: list[BaseException] = []
    while error is not None and not any(error is part for part in chain):
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _known(error: BaseException, packages: Sequence[str]) -> errors.PacelineError | None:
    """Return the error of ours that tells the user what to do, or None."""
    chain = _chain(error)
    refusal = next(filter(errors.lacks_memory, chain), None)
    # A damaged file may claim any size.
    if refusal is not None and not isinstance(error, errors.DataError | errors.ResourceError):
        return errors.memory_error(refusal)
    # a limit of the system, or deterministic=true, whatever error a library made of it
    for part in chain:
        words = errors.words_of(part, ALL)
        is_full = isinstance(part, OSError) and part.errno in (errno.EMFILE, errno.ENFILE)
        if is_full or os.strerror(errno.EMFILE) in words:
            fix = "raise it, or use fewer workers, or workers.kind=thread"
            return errors.ResourceError(109, "ulimit -n", "too many open files", fix)
        if "can't start new thread" in words:
            fix = "use fewer workers, or raise 'ulimit -u' or 'ulimit -v'"
            return errors.ResourceError(110, "threads", "the system starts no more of them", fix)
        if isinstance(part, RuntimeError) and NOT_REPEATABLE in words:
            from framework.system.rng import is_deterministic  # noqa: PLC0415  # loads torch, as above

            if is_deterministic():
                *_, operator = words.partition(NOT_REPEATABLE)[0].split() or [""]
                what = f"{operator} has no algorithm that repeats its results"
                fix = "use another operator in the model, or leave the option out"
                return errors.ConfigError(361, "deterministic = true", what, fix)
    fault = runtime_error(error, PEER_LOST)
    is_made = isinstance(error, errors.ConfigError | errors.CheckpointError) and fault is not None
    if isinstance(error, errors.PacelineError) and not is_made:
        return error
    number = error.errno if isinstance(error, OSError) else None
    known: errors.PacelineError | None = None
    if number not in NO_ROOM:
        # A lost worker comes first: torch's handlers raise in any line, also in the user's code.
        if (lost := runtime_error(error, "DataLoader worker")) is not None:
            what = f"a worker process was lost ({errors.words_of(lost, 200)})"
            fix = "look at memory and /dev/shm, and whether the store was changed, "
            fix += "or set workers.kind=thread"
            return errors.ResourceError(102, "workers", what, fix)
        if fault is not None:
            fix = "another rank ended or hangs; its own line says why"
            return errors.DistributedError(103, "a rank", errors.words_of(fault)[:200], fix)
        known = user_code.user_error(error, packages)
    if known is None and isinstance(error, OSError) and number in (*NO_ROOM, *REFUSED):
        what = f"cannot write: {os.strerror(number or 0)}"
        fix = "free space or choose another place"
        return errors.ResourceError(101, str(error.filename or "disk"), what, fix)
    return known


def runtime_error(error: BaseException, words: str) -> RuntimeError | None:
    """Return the RuntimeError of which ``error`` was made and whose text matches ``words``."""
    for part in _chain(error):
        if isinstance(part, RuntimeError) and re.search(words, errors.words_of(part, ALL)):
            return part
    return None
