"""Save and read the states of a run.

``checkpoints/step-NNNNNNNN.pt`` are states to resume from. ``last.pt`` and ``best.pt`` are plain
``state_dict`` files to use, with what the objective owns in ``.objective.pt`` beside them.

A state is what ``torch.save`` writes, followed by a stamp with its length and CRC32. A zip file may
have something behind it, so ``torch.load`` and ``zipfile`` read the state as it is. torch itself
does not notice a flipped bit, so the CRC32 is compared before anything is unpickled, weights only.
"""

import os
import struct
import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, final

import torch
from isal.isal_zlib import crc32  # zlib's numbers, ten times as fast
from torch import Tensor

from framework.contracts.training import Saved
from framework.errors import CheckpointError, ResourceError
from framework.system.durable import open_durable, reach, remove_leftovers
from framework.train.plain_state import Damaged, foreign_value, is_plain_tensor, load_checked

FOLDER = "checkpoints"
OF_OBJECTIVE = ".objective.pt"  # what follows "last" and "best" in the name
VERSION = 2
_MAGIC = b"PACELINE"
_END = struct.Struct("<8sI4Q")  # magic, version, step, sequence, length, CRC32 of the payload
_CRC = struct.Struct("<I")  # CRC32 of these
END_BYTES = _END.size + _CRC.size
_PIECE = 1 << 20  # bytes that are summed at once
_BATCH = 2 << 20  # bytes that the disk is asked to write at once


class Stamp(NamedTuple):
    """What stands behind a state in its file."""

    step: int
    sequence: int  # counts the saves of all runs in the folder: steps may repeat, and clocks jump
    length: int  # bytes of the state
    crc: int  # CRC32 of the state


class RecoveredState(NamedTuple):
    """The newest state that is whole."""

    state: dict[str, Any]
    path: Path
    damaged: tuple[str, ...]  # the newer files that are damaged, and what is wrong with them


@final
@dataclass
class CheckpointFolder:
    """The checkpoints in a run's directory, without what a killed process left half written."""

    run_dir: Path
    facts: dict[str, Any]  # stored with every state
    keep: int  # how many states are kept
    every_s: float | None  # seconds after which another state is due
    warn: Callable[[str], None]  # prints that the disk refused a save that is not the last

    def __post_init__(self) -> None:
        self.folder = self.run_dir / FOLDER
        remove_leftovers(self.folder)
        self._sequence = max((sequence for sequence, _ in _by_age(self.folder)), default=0)
        self._saved_at = time.monotonic()
        self._is_checked = False

    def is_late(self) -> bool:
        return self.every_s is not None and time.monotonic() - self._saved_at > self.every_s

    def save(
        self,
        step: int,
        state: dict[str, Any],
        weights: dict[str, Any] | None,
        best: bool,
        final: bool,
    ) -> Saved:
        """Save a state. ResourceError R101 if the disk refuses the ``final`` one."""
        if not self._is_checked:
            # before hours of training from whose states no run could continue
            self._is_checked = True
            if foreign := foreign_value(state.get("optimizer", {}), state.get("model", {})):
                fix = "keep dense tensors and plain values there"
                self.warn(f"warning: {foreign}: this run cannot be resumed; {fix}")
        files: dict[str, dict[str, Any]] = {}
        if weights is not None:
            for name in ("last", "best") if best else ("last",):
                files[f"{name}.pt"] = weights
                if owned := state.get("objective"):
                    files[f"{name}{OF_OBJECTIVE}"] = owned
        saved = Saved(None, False)
        try:
            for name, value in files.items():  # first, so that a run that resumes has them
                with open_durable(self.folder / name) as file:
                    _dump(value, file)
                reach("checkpoint.weights")
            saved = Saved(None, best and bool(files))
            self._sequence += 1
            path = self.folder / f"step-{step:08}.pt"
            save_state(path, {**state, **self.facts}, step, self._sequence)
            saved = Saved(path, saved.is_best)
            for _, old in _by_age(self.folder)[self.keep :]:  # the newer state is on the disk
                old.unlink(missing_ok=True)
                reach("checkpoint.removed")
        except ResourceError as error:
            if final:
                raise
            stands = "the newest checkpoint stands"
            if best and not saved.is_best:
                stands = "the newest checkpoint stands, and best.pt is not of this best validation"
            self.warn(f"warning: step {step} is not saved, {stands}; {error}")
        self._saved_at = time.monotonic()
        return saved


class _Counting:
    """A file that sums length and CRC32 of what is written. The disk begins to write at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.length = 0
        self.crc = 0
        self.error: OSError | None = None  # torch's own RuntimeError does not say why it failed
        self._begun = 0  # bytes that the disk was asked to write

    def write(self, data: Any) -> int:
        reach("checkpoint.writing")
        view = memoryview(data).cast("B") if len(data) else data
        try:
            # the kernel copies a piece while the cache still holds it from the summing
            for start in range(0, len(view), _PIECE):
                piece = view[start : start + _PIECE]
                self.crc = crc32(piece, self.crc)
                self._file.write(piece)
                self.length += len(piece)
                size = self.length - self._begun
                if size >= _BATCH and hasattr(os, "posix_fadvise"):
                    # the kernel writes and drops what it holds, which saves a fifth of the time
                    os.posix_fadvise(self._file.fileno(), self._begun, size, os.POSIX_FADV_DONTNEED)
                    self._begun = self.length
        except OSError as error:
            self.error = error
            raise
        return len(view)

    def flush(self) -> None:
        self._file.flush()


def _dump(value: Any, file: IO[bytes]) -> _Counting:
    counting = _Counting(file)
    try:
        torch.save(_on_host(value, {}), counting)  # pyright: ignore[reportArgumentType]  # a file, as far as torch asks
    except RuntimeError as error:
        raise counting.error or error from None
    return counting


def _on_host(value: Any, copies: dict[tuple[Any, ...], Tensor]) -> Any:
    """Return ``value`` with its tensors on the CPU, so that any machine can read it.

    A tensor that repeats its numbers (``expand``) is written out: read again, it would be refused.
    ``copies`` are those made so far: tied weights stay one tensor.
    """
    if isinstance(value, Tensor) and value.device.type != "cpu":
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if key not in copies:
            copies[key] = value.detach().cpu()
        return copies[key]
    if is_plain_tensor(value) and value.nbytes > value.untyped_storage().nbytes():
        return value.detach().contiguous()
    if isinstance(value, dict):
        result = copy(value)  # with the versions that a module's state_dict has as an attribute
        for name, item in value.items():
            result[name] = _on_host(item, copies)
        return result
    if isinstance(value, list | tuple):  # a named tuple would not be read again
        items = [_on_host(item, copies) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def save_state(path: Path, state: dict[str, Any], step: int, sequence: int) -> None:
    """Save a state so that at every instant the old file or the new one is whole."""
    with open_durable(path) as file:
        counting = _dump(state, file)
        end = _END.pack(_MAGIC, VERSION, step, sequence, counting.length, counting.crc)
        file.write(end + _CRC.pack(crc32(end)))


def read_state(path: Path) -> dict[str, Any]:
    """Return a state, on the CPU, or raise Damaged. Nothing in the file is executed."""
    try:
        with open(path, "rb") as file:
            stamp = read_stamp(file)
            file.seek(0)
            crc, left = 0, stamp.length
            while left and (piece := file.read(min(left, _PIECE))):
                crc = crc32(piece, crc)
                left -= len(piece)
            if left or crc != stamp.crc:
                raise Damaged("its checksum differs")
            state = load_checked(file, is_whole=True)
    except OSError as error:
        raise Damaged(error.strerror or "cannot be read") from error
    if not isinstance(state, dict):
        raise Damaged("not a state of a run")
    return state


def read_stamp(file: IO[bytes]) -> Stamp:
    """Return the stamp behind the state in an open file, or raise Damaged."""
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


def has_stamp(file: IO[bytes]) -> bool:
    """Return whether an open file ends as a state of ours does, whole or damaged."""
    start = max(0, os.fstat(file.fileno()).st_size - END_BYTES)
    file.seek(start)
    return file.read(len(_MAGIC)) == _MAGIC


def newest_state(run_dir: Path) -> RecoveredState:
    """Return a run's newest whole state. CheckpointError K101, K102 if there is none."""
    damaged: list[str] = []
    for _, path in _by_age(run_dir / FOLDER):
        try:
            return RecoveredState(read_state(path), path, tuple(damaged))
        except Damaged as error:
            damaged.append(f"{path.name} ({error})")
    where = f"resume = {run_dir}"
    if not damaged:
        fix = (
            "give the directory of a run that has saved one; "
            "'hydra.run.dir=RUN_DIR resume=auto' begins a new run if there is none"
        )
        raise CheckpointError(101, where, f"no {FOLDER}/step-*.pt there", fix)
    what = f"no checkpoint can be read: {', '.join(damaged)}"
    fix = f"start again, or from its last weights: init={run_dir / FOLDER / 'last.pt'}"
    raise CheckpointError(102, where, what, fix)


def newest_path(run_dir: Path) -> Path | None:
    """Return the file of the newest state, unread, or None."""
    return next((path for _, path in _by_age(run_dir / FOLDER)), None)


def saved_steps(run_dir: Path) -> dict[int, Path]:
    """Return the file of each state by its step, unread.

    A state that is older than one of an earlier step is left out: the run was resumed before it.
    """
    steps: dict[int, Path] = {}
    for sequence, path in _by_age(run_dir / FOLDER):
        if sequence == 0:  # no stamp
            continue
        with open(path, "rb") as file:
            step = read_stamp(file).step
        if step < min(steps, default=step + 1):
            steps[step] = path
    return steps


def _by_age(folder: Path) -> list[tuple[int, Path]]:
    """Return sequence and path of all states, the newest first, those without a stamp last."""
    states: list[tuple[int, Path]] = []
    for path in folder.glob("step-*.pt"):
        try:
            with open(path, "rb") as file:
                states.append((read_stamp(file).sequence, path))
        except (OSError, Damaged):
            states.append((0, path))
    return sorted(states, reverse=True)
