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
from typing import Any, NamedTuple

from rich.table import Table

from framework import errors
from framework.config.schema import AFTER_STEP, PROFILE
from framework.contracts.span import IDLE, LateRank
from framework.contracts.waits import slow_words
from framework.measure.statistics import BUSY_CORES
from framework.system.run_dir import ENDED, NEXT_FACTS, SUMMARY, read_object, redacted, write_object
from framework.system.safe_text import SafeConsole
from framework.system.stopping import Stop, message_if_stopped, undone
from framework.system.user_code import user_error

STAGES = ("read", "decode", "transform", "collate")
# Key of the summary's usage, its label, its divisor and unit.
USAGE = (
    ("cpu_cores", "this process", 1, ".2f", "cores"),
    ("workers_cpu_cores", "workers", 1, ".2f", "cores"),
    ("others_cpu_cores", "other programs", 1, ".2f", "cores"),
    ("gpu_busy_share", "GPU busy", 0.01, ".0f", "%"),
    ("peak_rss_bytes", "peak memory", 2**30, ".2f", "GiB"),
    ("peak_tree_rss_bytes", "with workers at most", 2**30, ".2f", "GiB"),
    ("peak_device_bytes", "of the device", 2**30, ".2f", "GiB"),
)
# Cores that other programs keep busy: enough to mention.
SEEN = 0.1
ALL = 1 << 20  # characters
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


def print_run(run_dir: Path, code: int, short: bool) -> None:
    """Print the table of one run, or one line for a job of a sweep (``short``)."""
    console = SafeConsole()
    summary: dict[str, Any] = {}
    if code in (0, errors.EXIT_PREEMPTED, errors.EXIT_INTERRUPTED):
        summary = read_object(run_dir / SUMMARY)
    lines: list[str | Table] = []
    if summary and short:
        rate = f"{summary['records_per_s']:,.0f} records/s{_beside(summary)}"
        lines.append(f"{metrics_words(summary)}  {rate}")
    elif summary:
        if summary.get("spans"):
            lines.append(spans_table(summary["spans"]))
        if ranks := summary.get("ranks"):
            heads = ("min", "median", "max", "slowest rank")
            rows: list[list[str]] = []
            for name, span in ranks["spans"].items():
                times = (f"{1e3 * span[key]:.3f} ms" for key in ("min_s", "median_s", "max_s"))
                rows.append([name, *times, str(span["rank"])])
            lines.append(_table(f"the mean step of {ranks['num']} ranks", heads, rows))
            if ranks["late"]:
                lines.append(LateRank(**ranks["late"]).words)
        lines += _lines(summary)
    for trace in sorted((run_dir / PROFILE).glob("*")):
        lines.append(f"trace: {trace} (open it at https://ui.perfetto.dev)")
    if summary:
        lines.append(f"run directory: {run_dir}")
    for line in lines:
        console.print(line, soft_wrap=True)


def spans_table(spans: dict[str, Any]) -> Table:
    """Return the table of the spans of a step, from their figures in ``summary.json``."""
    rows: list[list[str]] = []
    for name, span in spans.items():
        times = (f"{1e3 * span[key]:.3f} ms" for key in ("p50_s", "p90_s", "mean_s"))
        rows.append([name, f"{100 * span['share']:.1f} %", *times, f"{span['total_s']:.2f} s"])
    return _table("where the step time went", ("share", "p50", "p90", "mean", "total"), rows)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table("span", title=title, title_justify="left")
    for name in heads:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    """Yield what the table has no room for: reading, the machine, and the result."""
    if IDLE in summary.get("spans", {}):
        yield (
            "wait is the host's, beside which the device may work; "
            "idle, the device's, is what it costs"
        )
    if stages_s := summary.get("stages_s"):
        names = sorted(stages_s, key=lambda name: (*STAGES, name).index(name))
        line = "reading, thread-seconds: "
        line += "  ".join(f"{name} {stages_s[name]:.2f}" for name in names)
        queue = summary.get("queue", {})
        if queue.get("ready") is not None:
            line += f", {queue['ready']:.1f} of {queue['depth']} batches ready"
        yield line
    if content := summary.get("content"):
        shares = "  ".join(f"{name} {100 * share:.1f} %" for name, share in content.items())
        yield f"in the batches: {shares}"
    usage = dict(summary.get("usage", {}))
    if usage.get("others_cpu_cores", 0.0) < SEEN:
        usage.pop("others_cpu_cores", None)
    used = [
        f"{label} {usage[key] / divisor:{form}} {unit}"
        for key, label, divisor, form, unit in USAGE
        if key in usage
    ]
    if used:
        yield "  ".join(used)
    if _beside(summary) and "peak_device_bytes" not in usage:
        yield (
            "other programs keep cores busy: the threads of a step wait for each other then; "
            "OMP_NUM_THREADS=1 may be faster"
        )
    if slow := slow_words(summary.get("slow_records", {}), summary.get("train_s", 0.0)):
        yield slow
    if skipped := summary.get("skipped_steps"):
        yield f"skipped: {skipped} of {summary['steps']} steps, whose gradients were not finite"
    steps = f"{summary['run_steps']} steps in {summary['wall_s']:.1f} s"
    yield f"{summary['status']}: {steps}, {summary['records_per_s']:,.0f} records/s"
    if reason := summary.get("reason"):
        yield f"ended early: {reason}"
    if summary["val"]:
        best = metrics_words({"val": summary["best"]}).removeprefix("val ")
        yield f"{metrics_words(summary)}  (best {best})"


def _beside(summary: dict[str, Any]) -> str:
    others = summary.get("usage", {}).get("others_cpu_cores", 0.0)
    return f"  (beside other programs on {others:.1f} cores)" if others >= BUSY_CORES else ""


def metrics_words(summary: dict[str, Any]) -> str:
    """Return the means of the last validation; nothing if there is none."""
    values = [f"{name} {mean:.4f}" for name, mean in summary["val"].items() if name != "step"]
    return "val " + "  ".join(values) if values else ""


class RunOutcome(NamedTuple):
    """The content of ``exit.json``."""

    code: int  # as in docs/errors.md
    reason: str  # one line
    step: int | None = None  # the last that was taken
    rank: int | None = None  # the first that failed
    checkpoint: str | None = None  # the newest state, from which the run can continue


def told(action: Callable[[Path], RunOutcome], run_dir: Path | None = None) -> int:
    """Do one job of a command that does not train. Print why it failed, and return its exit code.

    ``run_dir`` is by default the directory that Hydra made. An empty one is removed afterwards.
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
    if threading.current_thread() is threading.main_thread():
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
    return RunOutcome(
        1 if known is None else known.exit_code,
        redacted(line) + hint,
        steps[0] if steps else None,
        known.rank if isinstance(known, errors.HungRankError) else None,
    )


@contextmanager
def told_if_stopped(run_dir: Path) -> Generator[None]:
    """Write ``exit.json`` and name the newest state if a signal ends the process inside the block.

    This does without torch, whose import the signal may interrupt.
    """

    def write(stop: Stop) -> None:
        (run_dir / NEXT_FACTS).unlink(missing_ok=True)
        _write_end(RunOutcome(*stop), run_dir)

    message = message_if_stopped(lambda by: f"stopped at once{by}; {newest_checkpoint(run_dir)}")
    with message, undone(write):
        yield


def newest_checkpoint(run_dir: Path) -> str:
    """Say which state a run has left."""
    path = _newest(run_dir)
    return "nothing was saved yet" if path is None else f"{path.name} stands"


def _newest(run_dir: Path) -> Path | None:
    paths = run_dir.glob("checkpoints/step-*.pt")
    return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)


def _write_end(outcome: RunOutcome, run_dir: Path) -> None:
    newest = _newest(run_dir)
    whole = outcome._replace(checkpoint=newest and str(newest.relative_to(run_dir)))
    write_object(run_dir / ENDED, whole._asdict())


def conclude(outcome: RunOutcome, run_dir: Path, short: bool) -> int:
    """Write ``exit.json``, print how the run went and why it failed, and return the exit code."""
    # The disk may be full, or the directory removed: the printed line still says what happened.
    with suppress(errors.PacelineError, OSError):
        _write_end(outcome, run_dir)
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


def _known(error: BaseException, packages: Sequence[str]) -> errors.PacelineError | None:
    """Return the error of ours that tells the user what to do, or None."""
    chain = list(_chain(error))
    # A damaged file may claim any size.
    if not isinstance(error, errors.DataError | errors.ResourceError):
        for part in chain:
            if errors.lacks_memory(part):
                return errors.memory_error(part)
    for part in chain:  # whatever error a library made of it
        if refusal := _limit(part):
            return refusal
    fault = exchange_error(error)
    is_made = isinstance(error, errors.ConfigError | errors.CheckpointError) and fault is not None
    if isinstance(error, errors.PacelineError) and not is_made:
        return error
    number = error.errno if isinstance(error, OSError) else None
    known: errors.PacelineError | None = None
    if number not in NO_ROOM:
        # A lost worker comes first: torch's handlers raise in any line, also in the user's code.
        for part in chain:
            text = errors.words_of(part, ALL)
            if isinstance(part, RuntimeError) and "DataLoader worker" in text:
                what = f"a worker process was lost ({text[:200]})"
                fix = (
                    "look at memory and /dev/shm, and whether the store was changed, "
                    "or set workers.kind=thread"
                )
                return errors.ResourceError(102, "workers", what, fix)
        if fault is not None:
            fix = "another rank ended or hangs; its own line says why"
            return errors.DistributedError(103, "a rank", errors.words_of(fault)[:200], fix)
        known = user_error(error, packages)
    if known is None and isinstance(error, OSError) and number in (*NO_ROOM, *REFUSED):
        what = f"cannot write: {os.strerror(number or 0)}"
        fix = "free space or choose another place"
        return errors.ResourceError(101, str(error.filename or "disk"), what, fix)
    return known


def _limit(error: BaseException) -> errors.PacelineError | None:
    """Return the error for a limit of the system, or for what ``deterministic=true`` forbids."""
    words = errors.words_of(error, ALL)
    is_full = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    if is_full or os.strerror(errno.EMFILE) in words:
        fix = "raise it, or use fewer workers, or workers.kind=thread"
        return errors.ResourceError(109, "ulimit -n", "too many open files", fix)
    if "can't start new thread" in words:
        fix = "use fewer workers, or raise 'ulimit -u' or 'ulimit -v'"
        return errors.ResourceError(110, "threads", "the system starts no more of them", fix)
    if isinstance(error, RuntimeError) and NOT_REPEATABLE in words:
        from framework.system.rng import is_deterministic  # noqa: PLC0415  # loads torch, as above

        if is_deterministic():
            *_, operator = words.partition(NOT_REPEATABLE)[0].split() or [""]
            what = f"{operator} has no algorithm that repeats its results"
            fix = "use another operator in the model, or leave the option out"
            return errors.ConfigError(361, "deterministic = true", what, fix)
    return None


def exchange_error(error: BaseException) -> BaseException | None:
    """Return what a failed exchange between ranks has raised, if ``error`` was made of that."""
    for part in _chain(error):
        text = errors.words_of(part, ALL)
        if isinstance(part, RuntimeError) and any(word in text for word in PEER_WORDS):
            return part
    return None
