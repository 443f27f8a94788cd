"""How a run ended: an exit code and a reason, whatever happened."""

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from framework.cli.end_table import print_run
from framework.config.schema import AFTER_STEP
from framework.errors import (
    EXIT_INTERRUPTED,
    CheckpointError,
    ConfigError,
    DataError,
    DistributedError,
    HungRankError,
    PacelineError,
    ResourceError,
    UserCodeError,
    escaped,
    say,
    words_of,
)
from framework.system.no_memory import lacks_memory, memory_error
from framework.system.redaction import redacted
from framework.system.run_dir import ENDED, NEXT_FACTS, write_object
from framework.system.stopping import Stop, message_if_stopped, undone
from framework.system.user_code import user_error

ALL = 1 << 20  # characters
FILES = (errno.EMFILE, errno.ENFILE)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EROFS, errno.EPERM)
NOT_REPEATABLE = " does not have a deterministic implementation"  # behind an operator's name
# What torch says when another rank is gone.
PEER_WORDS = (
    "gloo",
    "Application timeout caused pair closure",
    "NCCL",
    "Connection closed by peer",
    "Connection reset by peer",
)


class RunOutcome(NamedTuple):
    """The content of ``exit.json``.

    Attributes:
        code: The exit code, as in docs/errors.md.
        reason: One line.
        step: The last step that was taken.
        rank: The first rank that failed.
        checkpoint: The newest state, from which the run can continue.
    """

    code: int
    reason: str
    step: int | None = None
    rank: int | None = None
    checkpoint: str | None = None


def told(action: Callable[[Path], RunOutcome], run_dir: Path | None = None) -> int:
    """Do one job of a command that does not train. Print why it failed, and return its exit code.

    The action gets ``run_dir``, by default the directory that Hydra made for the job. An empty one
    is removed afterwards.
    """
    if run_dir is None:
        from hydra.core.hydra_config import HydraConfig  # noqa: PLC0415  # takes 0.1 s to load

        run_dir = Path(HydraConfig.get().runtime.output_dir)
    with undone(lambda _: discard_if_empty(run_dir)):
        outcome = outcome_of(partial(action, run_dir), run_dir, show_traceback=False)
    discard_if_empty(run_dir)
    return told_code(outcome)


def told_code(outcome: RunOutcome) -> int:
    """Print why an action failed, if it did. Return the exit code."""
    if outcome.code:
        say(outcome.reason, sys.stderr)
    return outcome.code


def outcome_of(
    action: Callable[[], RunOutcome],
    run_dir: Path,
    show_traceback: bool,
    packages: Sequence[str] = (),
) -> RunOutcome:
    """Do the action and turn an error into its line.

    Args:
        action: What to do.
        run_dir: Gets ``debug.log`` with the traceback of an error in the user's code, or an unknown
            one, and with those of all ranks if one hangs.
        show_traceback: Print the traceback, too.
        packages: Prefixes of the user's module names, for installed code.
    """
    try:
        return action()
    except BrokenPipeError:
        raise  # the job's starter handles it
    except KeyboardInterrupt:  # somebody's code raised it: our handlers raise nothing
        return RunOutcome(EXIT_INTERRUPTED, f"stopped at once; {newest_checkpoint(run_dir)}")
    except (Exception, SystemExit) as error:  # the last resort
        if threading.current_thread() is threading.main_thread():
            # torch's handler would raise once more when the next worker ends.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        known = _known(error, packages)
        if known is None and isinstance(error, SystemExit):
            raise
        if show_traceback:
            say(traceback.format_exc(), sys.stderr)
        return _failure(error, known, run_dir)


def _failure(error: BaseException, known: PacelineError | None, run_dir: Path) -> RunOutcome:
    """Return the outcome of an error, and write ``debug.log`` unless the line says everything."""
    code = 1
    line = f"error[X100]: {type(error).__name__}: {words_of(error)}"
    if known is not None:
        code = known.exit_code
        line = str(known)
    hint = ""
    if known is None or isinstance(known, UserCodeError | HungRankError):
        hint = "; debug=trace shows more"
        log = run_dir / "debug.log"
        with suppress(OSError):  # the directory may be what is gone
            run_dir.mkdir(parents=True, exist_ok=True)
            text = "".join(traceback.format_exception(error))
            log.write_text(escaped(redacted(text)), "utf-8", "surrogateescape")
        if log.exists():
            hint = f"; the traceback is in {log}"
    rank = known.rank if isinstance(known, HungRankError) else None
    return RunOutcome(code, redacted(line) + hint, _step(error), rank)


def _step(error: BaseException) -> int | None:
    """Return the last step that was taken, which the run has noted on the error."""
    for part in _chain(error):
        for note in getattr(part, "__notes__", ()):
            if isinstance(note, str) and note.startswith(AFTER_STEP):
                return int(note.removeprefix(AFTER_STEP))
    return None


@contextmanager
def told_if_stopped(run_dir: Path) -> Generator[None]:
    """Write ``exit.json`` and name the newest state if a signal ends the process inside the block.

    This does without torch, whose import the signal may interrupt.
    """

    def newest() -> Path | None:
        paths = run_dir.glob("checkpoints/step-*.pt")
        return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)

    def write(stop: Stop) -> None:
        path = newest()
        (run_dir / NEXT_FACTS).unlink(missing_ok=True)
        outcome = RunOutcome(*stop, checkpoint=path and str(path.relative_to(run_dir)))
        write_object(run_dir / ENDED, outcome._asdict())

    with message_if_stopped(lambda by: f"stopped at once{by}; {_stands(newest())}"), undone(write):
        yield


def newest_checkpoint(run_dir: Path) -> str:
    """Say which state a run has left."""
    return _stands(_newest(run_dir))


def _stands(path: Path | None) -> str:
    return "nothing was saved yet" if path is None else f"{path.name} stands"


def _newest(run_dir: Path) -> Path | None:
    from framework.train.checkpoint import newest_path  # noqa: PLC0415  # loads torch, which earlier errors do not need

    return newest_path(run_dir)


def conclude(outcome: RunOutcome, run_dir: Path, short: bool) -> int:
    """Write ``exit.json``, print how the run went and why it failed, and return the exit code."""
    # The disk may be full, or the directory removed: the printed line still says what happened.
    with suppress(PacelineError, OSError):
        newest = _newest(run_dir)
        whole = outcome._replace(checkpoint=newest and str(newest.relative_to(run_dir)))
        write_object(run_dir / ENDED, whole._asdict())
    (run_dir / NEXT_FACTS).unlink(missing_ok=True)
    print_run(run_dir, outcome.code, short)
    return told_code(outcome)


def discard_if_empty(run_dir: Path) -> None:
    """Remove the directory of a run that never was, and the empty ones of ours above it."""
    with suppress(OSError):
        run_dir.rmdir()
        for folder in list(run_dir.parents)[:2]:
            if "outputs" in folder.parts[:-1]:  # never a folder that may be the user's own
                folder.rmdir()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, its cause, and so on. Each once: an error may be its own context."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _known(error: BaseException, packages: Sequence[str]) -> PacelineError | None:
    """Return the error of ours that tells the user what to do, or None."""
    chain = list(_chain(error))
    # A damaged file may claim any size.
    if not isinstance(error, DataError | ResourceError):
        for part in chain:
            if lacks_memory(part):
                return memory_error(part)
    if refusal := _limit(chain) or _not_repeatable(chain):
        return refusal
    is_made = isinstance(error, ConfigError | CheckpointError) and exchange_error(error)
    if isinstance(error, PacelineError) and not is_made:
        return error
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return _refused(error)
    # A lost worker comes first: torch's handlers raise in any line, also in the user's code.
    known = _lost(error, chain) or user_error(error, packages)
    if known is None and isinstance(error, OSError) and error.errno in REFUSED:
        return _refused(error)
    return known


def _limit(chain: list[BaseException]) -> ResourceError | None:
    """Return the error for a limit of the system, whatever error a library made of it."""
    too_many = os.strerror(errno.EMFILE)
    for error in chain:
        words = words_of(error, ALL)
        if too_many in words or (isinstance(error, OSError) and error.errno in FILES):
            fix = "raise it, or use fewer workers, or workers.kind=thread"
            return ResourceError(109, "ulimit -n", "too many open files", fix)
    if any("can't start new thread" in words_of(error, ALL) for error in chain):
        fix = "use fewer workers, or raise 'ulimit -u' or 'ulimit -v'"
        return ResourceError(110, "threads", "the system starts no more of them", fix)
    return None


def _not_repeatable(chain: list[BaseException]) -> ConfigError | None:
    """Return the error for an operator that ``deterministic=true`` forbids."""
    for error in chain:
        words = words_of(error, ALL)
        if isinstance(error, RuntimeError) and NOT_REPEATABLE in words and _was_asked():
            *_, operator = words.partition(NOT_REPEATABLE)[0].split() or [""]
            what = f"{operator} has no algorithm that repeats its results"
            fix = "use another operator in the model, or leave the option out"
            return ConfigError(361, "deterministic = true", what, fix)
    return None


def _was_asked() -> bool:
    from framework.system.algorithms import is_deterministic  # noqa: PLC0415  # loads torch, as above

    return is_deterministic()


def _refused(error: OSError) -> ResourceError:
    what = f"cannot write: {os.strerror(error.errno or 0)}"
    return ResourceError(
        101, str(error.filename or "disk"), what, "free space or choose another place"
    )


def exchange_error(error: BaseException) -> BaseException | None:
    """Return what a failed exchange between ranks has raised, if ``error`` was made of that."""
    for part in _chain(error):
        text = words_of(part, ALL)
        if isinstance(part, RuntimeError) and any(word in text for word in PEER_WORDS):
            return part
    return None


def _lost(error: BaseException, chain: list[BaseException]) -> PacelineError | None:
    """Return the error for a lost worker or a lost rank."""
    for part in chain:
        # torch's SIGCHLD handler raises anywhere, also where another error is made of it.
        text = words_of(part, ALL)
        if isinstance(part, RuntimeError) and "DataLoader worker" in text:
            what = f"a worker process was lost ({text[:200]})"
            fix = (
                "look at memory and /dev/shm, and whether the store was changed, "
                "or set workers.kind=thread"
            )
            return ResourceError(102, "workers", what, fix)
    if fault := exchange_error(error):
        fix = "another rank ended or hangs; its own line says why"
        return DistributedError(103, "a rank", words_of(fault)[:200], fix)
    return None
