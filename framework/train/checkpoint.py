"""A run's states on disk: ``checkpoints/step-NNNNNNNN.pt`` to resume from, ``last.pt`` and ``best.pt`` (plain ``state_dict``s) to use.

A state is what ``torch.save`` writes, and 44 bytes behind it that say how long it is, and its CRC32: a zip file may have something behind it, so
``torch.load`` and ``zipfile`` read it as it is. torch itself believes a flipped bit, so we compare first, and only then unpickle, weights only.
"""

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple, final

import torch
from isal.isal_zlib import crc32  # zlib's numbers, ten times as fast

from framework.errors import CheckpointError, ResourceError
from framework.system.durable import open_durable, reach, remove_leftovers

FOLDER = "checkpoints"
VERSION = 1
_MAGIC = b"PACELINE"
_END, _CRC = (
    struct.Struct("<8sI4Q"),
    struct.Struct("<I"),
)  # magic, version, step, sequence, length, CRC32 of the payload; CRC32 of these
END_BYTES = _END.size + _CRC.size
_PIECE, _BATCH = 1 << 20, 2 << 20  # bytes summed at once; bytes the disk is asked to write at once


class Stamp(NamedTuple):
    """What stands behind a state. ``sequence``: the number of the save, over all runs in the folder: steps may come twice, clocks jump."""

    step: int
    sequence: int
    length: int
    crc: int


class Damaged(Exception):
    """A file is not what was saved; the text says in which way."""


class RecoveredState(NamedTuple):
    """The newest state that is whole, and what was wrong with the newer ones."""

    state: dict[str, Any]
    path: Path
    damaged: tuple[str, ...]


@final
class CheckpointFolder:
    """Checkpoints under ``run_dir``: the newest ``keep`` states, with ``facts`` of the run in each. ``every_s``: seconds between states, at least (None: no limit).

    A save that the disk refuses is told to ``warn``, unless it is the last. Removes what a killed process left half written.
    """

    def __init__(
        self,
        run_dir: Path,
        facts: dict[str, Any],
        keep: int,
        every_s: float | None,
        warn: Callable[[str], None],
    ) -> None:
        self.folder, self.facts, self.keep, self.every_s, self._warn = (
            run_dir / FOLDER,
            facts,
            keep,
            every_s,
            warn,
        )
        remove_leftovers(self.folder)
        self._sequence = max((sequence for sequence, _ in _by_age(self.folder)), default=0)
        self._saved_at = time.monotonic()

    def is_late(self) -> bool:
        """Whether ``every_s`` has passed since the last save."""
        return self.every_s is not None and time.monotonic() - self._saved_at > self.every_s

    def save(
        self,
        step: int,
        state: dict[str, Any],
        weights: dict[str, Any] | None,
        best: bool,
        final: bool,
    ) -> None:
        """Publish ``state``; ``weights``, where given, as ``last.pt``, and as ``best.pt`` where they are the best. ResourceError R101 where it
        is ``final``.
        """
        try:
            self._save(step, state, weights, best)
        except ResourceError as error:
            if final:
                raise
            self._warn(f"warning: step {step} is not saved, the newest checkpoint stands; {error}")
        self._saved_at = time.monotonic()

    def _save(
        self, step: int, state: dict[str, Any], weights: dict[str, Any] | None, best: bool
    ) -> None:
        if (
            weights is not None
        ):  # before the state, so that who goes on from it need not write them again
            for name in ("last.pt", "best.pt") if best else ("last.pt",):
                with open_durable(self.folder / name) as file:
                    _dump(weights, file)
                reach("checkpoint.weights")
        self._sequence += 1
        save_state(
            self.folder / f"step-{step:08}.pt", {**state, **self.facts}, step, self._sequence
        )
        for _, path in _by_age(self.folder)[
            self.keep :
        ]:  # only now: the newer one has its name on the disk
            path.unlink(missing_ok=True)
            reach("checkpoint.removed")


class _Counting:
    """A file that knows the length and the CRC32 of what was written to it, and why it could not be. The disk begins while torch still writes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.length, self.crc, self._begun = file, 0, 0, 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        reach("checkpoint.writing")
        view = memoryview(data).cast("B") if len(data) else data
        try:
            for start in range(
                0, len(view), _PIECE
            ):  # a piece is summed, and copied by the kernel, while the cache holds it
                piece = view[start : start + _PIECE]
                self.crc = crc32(piece, self.crc)
                self._file.write(piece)
                self.length += len(piece)
                self._begin()
        except OSError as error:  # torch would make a RuntimeError of it that does not say why
            self.error = error
            raise
        return len(view)

    def _begin(self) -> None:
        """Ask the kernel to write what it holds, and not to keep it: a fifth of a save's time, when the disk need not wait for the end."""
        if self.length - self._begun >= _BATCH and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(
                self._file.fileno(), self._begun, self.length - self._begun, os.POSIX_FADV_DONTNEED
            )
            self._begun = self.length

    def flush(self) -> None:
        self._file.flush()


def _dump(value: Any, file: IO[bytes]) -> _Counting:
    """``torch.save``; an OSError where the file says no."""
    counting = _Counting(file)
    try:
        torch.save(value, counting)  # pyright: ignore[reportArgumentType]  # a file, as far as torch asks
    except RuntimeError as error:
        raise counting.error or error from None
    return counting


def save_state(path: Path, state: dict[str, Any], step: int, sequence: int) -> None:
    """Publish ``state`` under ``path``: the old file or the new one is there at every instant, whole. ResourceError R101."""
    with open_durable(path) as file:
        counting = _dump(state, file)
        end = _END.pack(_MAGIC, VERSION, step, sequence, counting.length, counting.crc)
        file.write(end + _CRC.pack(crc32(end)))


def read_state(path: Path) -> dict[str, Any]:
    """The state, on the CPU. Damaged where a byte is not what was saved; nothing in it is ever executed."""
    try:
        with open(path, "rb") as file:
            _compare(file)
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise Damaged(error.strerror or "cannot be read") from error
    except Damaged:
        raise
    except Exception as error:  # whole, but not ours: a hostile pickle can raise anything
        raise Damaged(
            f"not plain weights and values, or not torch's format ({type(error).__name__})"
        ) from error  # torch's words advise to run it
    if not isinstance(state, dict):
        raise Damaged("not a state of a run")
    return state


def _compare(file: IO[bytes]) -> None:
    stamp = read_stamp(file)
    file.seek(0)
    crc, left = 0, stamp.length
    while left and (piece := file.read(min(left, _PIECE))):
        crc, left = crc32(piece, crc), left - len(piece)
    if left or crc != stamp.crc:
        raise Damaged("its checksum differs")


def read_stamp(file: IO[bytes]) -> Stamp:
    """What stands behind the state in an open file. Damaged where there is nothing of ours, or of another version or length."""
    size = os.fstat(file.fileno()).st_size
    if size < END_BYTES:
        raise Damaged(f"only {size} bytes long")
    file.seek(size - END_BYTES)
    end = file.read(END_BYTES)
    magic, version, step, sequence, length, crc = _END.unpack_from(end)
    if magic != _MAGIC or _CRC.unpack_from(end, _END.size) != (crc32(end[: _END.size]),):
        raise Damaged("cut off, or not a state of a run")
    if version != VERSION:
        raise Damaged(f"written in version {version}, this paceline reads {VERSION}")
    if length != size - END_BYTES:
        raise Damaged(f"{size} bytes long instead of {length + END_BYTES}")
    return Stamp(step, sequence, length, crc)


def newest_state(run_dir: Path) -> RecoveredState:
    """The newest state of a run that is whole. CheckpointError K101 where there is none, K102 where none can be read."""
    damaged: list[str] = []
    for _, path in _by_age(run_dir / FOLDER):
        try:
            return RecoveredState(read_state(path), path, tuple(damaged))
        except Damaged as error:
            damaged.append(f"{path.name} ({error})")
    if not damaged:
        what = f"no {FOLDER}/step-*.pt there"
        raise CheckpointError(
            101,
            f"resume = {run_dir}",
            what,
            "give the directory of a run that has saved one; 'hydra.run.dir=RUN_DIR resume=auto' begins where there is none",
        )
    what = f"no checkpoint can be read: {', '.join(damaged)}"
    raise CheckpointError(
        102, f"resume = {run_dir}", what, "start again, or use checkpoints/last.pt for the weights"
    )


def newest_path(run_dir: Path) -> Path | None:
    """The newest state's file, unread; None where there is none."""
    found = _by_age(run_dir / FOLDER)
    return found[0][1] if found else None


def _by_age(folder: Path) -> list[tuple[int, Path]]:
    """(sequence, path) of all states, the newest first; those whose end cannot be read are the oldest."""
    found: list[tuple[int, Path]] = []
    for path in folder.glob("step-*.pt"):
        try:
            with open(path, "rb") as file:
                found.append((read_stamp(file).sequence, path))
        except (OSError, Damaged):
            found.append((0, path))
    return sorted(found, reverse=True)
