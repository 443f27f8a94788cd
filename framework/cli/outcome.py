"""How a run ended: a code and a reason, whatever happened."""

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

from hydra.core.hydra_config import HydraConfig

from framework.cli.end_table import print_run
from framework.cli.environment import without_values
from framework.cli.rundir import discard_if_empty
from framework.config.schema import AFTER_STEP, NEXT_FACTS
from framework.errors import (
    EXIT_INTERRUPTED,
    DistributedError,
    PacelineError,
    ResourceError,
    UserCodeError,
    words_of,
)
from framework.system.durable import write_json
from framework.system.stopping import Stop, reason, undone
from framework.system.user_code import user_error

ALL = 1 << 20  # characters
FILES = (errno.EMFILE, errno.ENFILE)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EROFS, errno.EPERM)
PEER_WORDS = (
    "gloo",
    "Application timeout caused pair closure",
    "NCCL",
    "Connection closed by peer",
    "Connection reset by peer",
)  # what torch says when another rank is gone


class RunOutcome(NamedTuple):
    """What ``exit.json`` holds. ``code`` as in docs/errors.md; ``reason`` is one line; ``step``: the last one taken; ``rank``: the first that
    failed; ``checkpoint``: the newest state, to go on from.
    """

    code: int
    reason: str
    step: int | None = None
    rank: int | None = None
    checkpoint: str | None = None


def told(action: Callable[[Path], RunOutcome]) -> int:
    """Do one job of a command that trains nothing, in the directory Hydra made for it, which goes if nothing is left there; what went wrong
    is said. Returns the exit code.
    """
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    with undone(lambda _: discard_if_empty(run_dir)):
        outcome = outcome_of(partial(action, run_dir), run_dir, show_traceback=False)
    discard_if_empty(run_dir)
    if outcome.code:
        print(outcome.reason, file=sys.stderr)
    return outcome.code


def outcome_of(
    action: Callable[[], RunOutcome],
    run_dir: Path,
    show_traceback: bool,
    packages: Sequence[str] = (),
) -> RunOutcome:
    """Do it. Errors become their line; one of the user's code, or an unexpected one, leaves its traceback in ``run_dir/debug.log``.

    ``packages``: prefixes of the user's module names, for code of theirs that is installed.
    """
    try:
        return action()
    except BrokenPipeError:
        raise  # dealt with where the job was started
    except KeyboardInterrupt:  # raised by somebody's code: our handlers raise nothing
        return RunOutcome(EXIT_INTERRUPTED, f"stopped at once; {newest_checkpoint(run_dir)}")
    except (Exception, SystemExit) as error:  # the last resort
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGCHLD, signal.SIG_DFL
            )  # torch's handler would raise once more, at the next worker's end
        known = _known(error, packages)
        if known is None and isinstance(error, SystemExit):
            raise
        if show_traceback:
            traceback.print_exc()
        step = _step(error)
        if known is not None and not isinstance(known, UserCodeError):
            return RunOutcome(known.exit_code, without_values(str(known), run_dir), step)
        log = run_dir / "debug.log"
        with suppress(OSError):  # the directory may be what is gone
            log.write_text(
                without_values("".join(traceback.format_exception(error)), run_dir),
                encoding="utf-8",
            )
        hint = f"the traceback is in {log}" if log.exists() else "debug=trace shows more"
        if known is not None:
            return RunOutcome(
                known.exit_code, f"{without_values(str(known), run_dir)}; {hint}", step
            )
        words = without_values(words_of(error), run_dir)
        reason = f"error[X100]: {type(error).__name__}: {words}; {hint}"
        return RunOutcome(1, reason, step)


def _step(error: BaseException) -> int | None:
    """The last step that was taken, as the run has noted it."""
    notes = [
        note.removeprefix(AFTER_STEP)
        for one in _chain(error)
        for note in getattr(one, "__notes__", ())
        if isinstance(note, str) and note.startswith(AFTER_STEP)
    ]
    return int(notes[0]) if notes else None


@contextmanager
def told_if_stopped(run_dir: Path) -> Generator[None]:
    """Write ``exit.json`` and say what stands if a signal ends the process inside the block, with no step under way.

    Without torch, which may be in the middle of its import then.
    """

    def newest() -> Path | None:
        paths = run_dir.glob("checkpoints/step-*.pt")
        return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)

    def words(by: str) -> str:
        path = newest()
        return f"stopped at once{by}; {'nothing was saved yet' if path is None else f'{path.name} stands'}"

    def write(stop: Stop) -> None:
        path = newest()
        (run_dir / NEXT_FACTS).unlink(missing_ok=True)
        outcome = RunOutcome(*stop, checkpoint=path and str(path.relative_to(run_dir)))
        write_json(run_dir / "exit.json", outcome._asdict())

    with reason(words), undone(write):
        yield


def newest_checkpoint(run_dir: Path) -> str:
    """What stopping at once has left."""
    found = _newest(run_dir)
    return "nothing was saved yet" if found is None else f"{found.name} stands"


def _newest(run_dir: Path) -> Path | None:
    from framework.train.checkpoint import newest_path  # noqa: PLC0415  # imports torch, which what can fail before this does not need

    return newest_path(run_dir)


def conclude(outcome: RunOutcome, run_dir: Path, short: bool) -> int:
    """Write ``exit.json`` (with the newest checkpoint), say how the run went, and why it ended where that was no success. Returns the exit code."""
    with suppress(
        PacelineError, OSError
    ):  # a full disk, or a directory somebody removed: the line below still says what happened
        newest = _newest(run_dir)
        write_json(
            run_dir / "exit.json",
            outcome._replace(checkpoint=newest and str(newest.relative_to(run_dir)))._asdict(),
        )
    (run_dir / NEXT_FACTS).unlink(missing_ok=True)
    print_run(run_dir, outcome.code, short)
    if outcome.code:
        print(outcome.reason, file=sys.stderr)
    return outcome.code


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it was made of, and what that was made of. Each once: an error may come back as its own context."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _known(error: BaseException, packages: Sequence[str]) -> PacelineError | None:
    """What a user can mend."""
    chain = list(_chain(error))
    if limit := _limit(chain):
        return limit
    if isinstance(error, PacelineError):
        return error
    words = words_of(error)[:200]
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return _refused(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return ResourceError(
            104, "memory", words or "used up", "lower batch_size, or raise accumulate"
        )
    # before what is the user's: torch's handlers raise in whatever line is being run
    found = _lost(error, chain, words) or user_error(error, packages)
    if found is None and isinstance(error, OSError) and error.errno in REFUSED:
        return _refused(error)
    return found


def _limit(chain: list[BaseException]) -> ResourceError | None:
    """A limit of the system, whatever was made of it."""
    if any(
        (isinstance(one, OSError) and one.errno in FILES)
        or os.strerror(errno.EMFILE) in words_of(one, ALL)
        for one in chain
    ):
        return ResourceError(
            109,
            "ulimit -n",
            "too many open files",
            "raise it, or use fewer workers, or workers.kind=thread",
        )
    if any("can't start new thread" in words_of(one, ALL) for one in chain):
        return ResourceError(
            110,
            "threads",
            "the system starts no more of them",
            "use fewer workers, or raise 'ulimit -u'",
        )
    return None


def _refused(error: OSError) -> ResourceError:
    where, what = str(error.filename or "disk"), f"cannot write: {os.strerror(error.errno or 0)}"
    return ResourceError(101, where, what, "free space or choose another place")


def _lost(error: BaseException, chain: list[BaseException], words: str) -> PacelineError | None:
    """A worker, or another rank."""
    lost = next(
        (
            words_of(one, ALL)
            for one in chain
            if isinstance(one, RuntimeError) and "DataLoader worker" in words_of(one, ALL)
        ),
        None,
    )
    if (
        lost is not None
    ):  # torch's SIGCHLD handler raises wherever we are, also where another error is made of it
        fix = "look at memory and /dev/shm, and whether the store was changed, or set workers.kind=thread"
        return ResourceError(102, "workers", f"a worker process was lost ({lost[:200]})", fix)
    if isinstance(error, RuntimeError) and any(word in words_of(error, ALL) for word in PEER_WORDS):
        return DistributedError(
            103, "a rank", words, "another rank ended or hangs; its own line says why"
        )
    return None
