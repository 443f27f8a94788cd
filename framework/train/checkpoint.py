"""Save and read the states of a run.

``checkpoints/step-NNNNNNNN.pt`` are states to resume from: what ``torch.save`` writes, and a stamp
with its length and CRC32, which torch and ``zipfile`` ignore. torch does not notice a flipped bit,
so the CRC32 is compared before anything is unpickled, weights only. ``last.pt`` and ``best.pt`` are
plain ``state_dict`` files, and ``last.objective.pt`` and so on what the objective owns.
"""

import argparse
import copy
import io
import math
import os
import shutil
import struct
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, final

import torch
from isal.isal_zlib import crc32  # zlib's numbers, ten times as fast
from torch import Tensor, nn
from torch.serialization import safe_globals

from framework.contracts.parallel import Parallel
from framework.errors import CheckpointError, ResourceError
from framework.system.durable import open_durable, publish, reach, remove_leftovers

FOLDER = "checkpoints"
OF_OBJECTIVE = ".objective.pt"  # what follows "last" and "best" in the name
VERSION = 2
_MAGIC = b"PACELINE"
_END = struct.Struct("<8sI4Q")  # magic, version, step, sequence, length, CRC32 of the payload
_CRC = struct.Struct("<I")  # CRC32 of these
END_BYTES = _END.size + _CRC.size
_PIECE = 1 << 20  # bytes that are summed at once
_BATCH = 2 << 20  # bytes that the disk is asked to write at once
PLAIN = (bool, int, float, str, torch.dtype, torch.device)
LARGEST = 1 << 63  # no tensor holds an integer of this size
# How much more than the file's length its tensors may take together. Views of one storage overlap
# in few files, and tied weights count once.
MOST_VIEWED = 4
MOST_SHARED = 8  # how many values may come of a byte of a file that refers to some repeatedly
DEEPEST = 100  # lists in lists
State = dict[str, Any]


class Damaged(Exception):
    """A file is not what was saved. The text says why."""


class Saved(NamedTuple):
    """What a save has put on the disk."""

    path: Path | None  # the file of the state; None if the disk refused it
    is_best: bool  # whether the weights are published as the best, or as one of the best


class Stamp(NamedTuple):
    """The end of the file of a state. The newest one is the largest."""

    sequence: int  # counts the saves of all runs in the folder: steps may repeat, and clocks jump
    step: int
    length: int  # bytes of the state
    crc: int  # CRC32 of the state


NO_STAMP = Stamp(0, 0, 0, 0)  # of a damaged file


class RecoveredState(NamedTuple):
    """The newest state that is whole."""

    state: State
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
        self._sequence = max((stamp.sequence for stamp, _ in _by_age(self.folder)), default=0)
        self._saved_at = time.monotonic()
        self._is_checked = False

    def is_late(self) -> bool:
        return self.every_s is not None and time.monotonic() - self._saved_at > self.every_s

    def save(
        self,
        step: int,
        state: State,
        weights: State | None,
        best: bool,
        final: bool,
        ranked: Sequence[int] = (),
    ) -> Saved:
        """Save a state. ResourceError R101 if the disk refuses the ``final`` one.

        ``weights`` become ``last.pt``, and if ``best``, ``best.pt``. ``ranked`` are the steps of
        the best validations, whose weights stay as ``best-STEP.pt``.
        """
        if not self._is_checked:
            # before hours of training from whose states no run could continue
            self._is_checked = True
            if foreign := foreign_value(state.get("optimizer", {}), state.get("model", {})):
                fix = "keep dense tensors and plain values there"
                self.warn(f"warning: {foreign}: this run cannot be resumed; {fix}")
        files: dict[str, State] = {}
        if weights is not None:
            kept_as = {"last": True, "best": best, f"best-{step:08}": step in ranked}
            for name in filter(kept_as.get, kept_as):
                files[f"{name}.pt"] = weights
                if owned := state.get("objective"):
                    files[f"{name}{OF_OBJECTIVE}"] = owned
        saved = Saved(None, False)
        try:
            for name, value in files.items():  # first, so that a run that resumes has them
                with open_durable(self.folder / name) as file:
                    _dump(value, file)
                reach("checkpoint.weights")
            saved = Saved(None, len(files) > 0 and (best or step in ranked))
            self._sequence += 1
            path = self.folder / f"step-{step:08}.pt"
            save_state(path, {**state, **self.facts}, step, self._sequence)
            saved = saved._replace(path=path)
            for _, old in _by_age(self.folder)[self.keep :]:  # the newer state is on the disk
                old.unlink(missing_ok=True)
                reach("checkpoint.removed")
            names = {f"best-{own:08}{end}" for own in ranked for end in (".pt", OF_OBJECTIVE)}
            for old in self.folder.glob("best-[0-9]*.pt"):
                if old.name not in names:
                    old.unlink(missing_ok=True)
        except ResourceError as error:
            if final:
                raise
            kept = "the newest checkpoint stands"
            if best and not saved.is_best:
                kept += ", and best.pt is not of this best validation"
            self.warn(f"warning: step {step} is not saved, {kept}; {error}")
        self._saved_at = time.monotonic()
        return saved


def take_best(source: Path, target: Path) -> None:
    """Copy the best weights so far to the folder of a run that continues another one."""
    for file in source.glob("best*.pt"):
        if file.is_file() and not file.is_symlink() and not (target / file.name).exists():
            with publish(target / file.name) as copy:
                shutil.copyfile(file, copy)


class _Counting:
    """A file that sums length and CRC32 of what is written. The disk begins to write at once."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.flush = file.flush
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


def _dump(value: Any, file: IO[bytes]) -> _Counting:
    counting = _Counting(file)
    try:
        torch.save(_on_host(value, {}), counting)  # pyright: ignore[reportArgumentType]  # a file, as far as torch asks
    except RuntimeError as error:
        raise counting.error or error from None
    return counting


def _on_host(value: Any, copies: dict[tuple[Any, ...], Tensor]) -> Any:
    """Return ``value`` with its tensors on the CPU. Tied weights stay one tensor, by ``copies``.

    A tensor that repeats its numbers (``expand``) is written out: read again, it would be refused.
    """
    if isinstance(value, Tensor) and value.device.type != "cpu":
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if key not in copies:
            copies[key] = value.detach().cpu()
        return copies[key]
    if is_plain_tensor(value) and value.nbytes > value.untyped_storage().nbytes():
        return value.detach().contiguous()
    if isinstance(value, dict):
        # with the versions that a module's state_dict has as an attribute
        result = copy.copy(value)
        for name, item in value.items():
            result[name] = _on_host(item, copies)
        return result
    if isinstance(value, list | tuple):  # a named tuple would not be read again
        items = [_on_host(item, copies) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def save_state(path: Path, state: State, step: int, sequence: int) -> None:
    """Save a state so that at every instant the old file or the new one is whole."""
    with open_durable(path) as file:
        counting = _dump(state, file)
        end = _END.pack(_MAGIC, VERSION, step, sequence, counting.length, counting.crc)
        file.write(end + _CRC.pack(crc32(end)))


def read_state(path: Path) -> State:
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
    return Stamp(sequence, step, length, crc)


def has_stamp(file: IO[bytes]) -> bool:
    """Return whether an open file ends as a state of ours does, whole or damaged."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - END_BYTES))
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
        fix = "give the directory of a run that has saved one; "
        fix += "'hydra.run.dir=RUN_DIR resume=auto' begins a new run if there is none"
        raise CheckpointError(101, where, f"no {FOLDER}/step-*.pt there", fix)
    fix = f"start again, or from its last weights: init={run_dir / FOLDER / 'last.pt'}"
    raise CheckpointError(102, where, f"no checkpoint can be read: {', '.join(damaged)}", fix)


def newest_path(run_dir: Path) -> Path | None:
    """Return the file of the newest state, unread, or None."""
    return next((path for _, path in _by_age(run_dir / FOLDER)), None)


def saved_steps(run_dir: Path) -> dict[int, Path]:
    """Return the file of each state by its step, unread, without those older than a resume."""
    steps: dict[int, Path] = {}
    for stamp, path in _by_age(run_dir / FOLDER):
        if stamp != NO_STAMP and stamp.step < min(steps, default=math.inf):
            steps[stamp.step] = path
    return steps


def _by_age(folder: Path) -> list[tuple[Stamp, Path]]:
    """Return stamp and path of all states, the newest first, those without a stamp last."""
    states: list[tuple[Stamp, Path]] = []
    for path in folder.glob("step-*.pt"):
        stamp = NO_STAMP
        with suppress(OSError, Damaged), open(path, "rb") as file:
            stamp = read_stamp(file)
        states.append((stamp, path))
    return sorted(states, reverse=True)


def is_plain(value: Any) -> bool:
    """Return whether a saved state may hold ``value``: nothing that only code could restore."""
    if type(value) in (dict, OrderedDict):
        keys_fit = not any(isinstance(key, Tensor) for key in value)
        return keys_fit and all(map(is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple, torch.Size) and all(map(is_plain, value))
    return value is None or type(value) in PLAIN or is_plain_tensor(value)


def is_plain_tensor(value: Any) -> bool:
    """Return whether a value is a tensor whose file cannot declare more than it holds."""
    if type(value) not in (Tensor, nn.Parameter):
        return False
    has_numbers = value.layout == torch.strided and value.device.type != "meta"
    return has_numbers and not value.is_quantized and not value.is_nested


def of_all_ranks(value: Any, parallel: Parallel) -> list[Any]:
    """Return the plain value of each rank, on the CPU. All ranks call this together."""
    if parallel.world_size == 1:
        return [value]
    file = io.BytesIO()
    torch.save(value, file)
    data = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    files = [io.BytesIO(own.numpy().tobytes()) for own in parallel.gather(data)]
    return [torch.load(own, map_location="cpu", weights_only=True) for own in files]


def load_checked(file: IO[bytes], is_whole: bool = False) -> Any:
    """Return the plain values and tensors of a file of torch, on the CPU. Nothing is executed.

    Unless ``is_whole``, as a checksum of all bytes tells, the checksums of its parts are compared,
    and the numbers stay on the disk until they are used. Raise Damaged if it is cut off, is of
    another format, holds more than plain values, or would take much more memory than it is long.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        file.seek(0)
        is_zip = file.read(4) == b"PK\3\4"  # as of torch 1.6
        if is_zip:
            _check_zip(file, size, is_whole)
        with safe_globals([argparse.Namespace]):
            # torch makes no mapped tensor larger than its part of the file
            value = torch.load(file.name, map_location="cpu", weights_only=True, mmap=is_zip)
        views: dict[Any, int] = {}
        storages: dict[int, int] = {}
        if _count(value, 0, {}, views, storages) > MOST_SHARED * size:
            raise Damaged("it refers to some of its values too often, or a list holds itself")
        if sum(storages.values()) > size:
            raise Damaged("it declares more bytes than it has")
        if sum(views.values()) > MOST_VIEWED * size:
            raise Damaged("its tensors declare the same numbers too often")
        return copy.deepcopy(value) if is_whole else value
    except (Damaged, OSError):
        raise
    except Exception as error:  # a hostile pickle can raise anything
        # torch's own message would advise to run the file
        what = f"not plain weights and values, or not torch's format ({type(error).__name__})"
        raise Damaged(what) from error


def _check_zip(file: IO[bytes], size: int, is_whole: bool) -> None:
    """Raise Damaged if torch would read more from an archive than the archive is long."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            # zipfile looks for the directory before the end of the file, torch where the end says
            file.seek(archive.start_dir)
            tail = file.read()
            end = tail.rfind(b"PK\5\6")
            start = int.from_bytes(tail[end + 16 : end + 20], "little")
            if start == 0xFFFFFFFF:
                end = tail.rfind(b"PK\6\6")
                start = int.from_bytes(tail[end + 48 : end + 56], "little")
            if start != archive.start_dir or tail.count(b"PK\6\6") > 1:
                raise Damaged("it has two directories")
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise Damaged("a part of it is compressed, as torch.save never does")
            # torch takes x/DATA.PKL for x/data.pkl
            if len({member.filename.lower() for member in members}) < len(members):
                raise Damaged("two of its parts have one name")
            if sum(member.file_size for member in members) > size:
                raise Damaged("it declares more bytes than it has")
            damaged = None if is_whole else archive.testzip()
            if damaged is not None:
                raise Damaged(f"the checksum of {damaged[:100]} differs")
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise Damaged(f"cut off, or no archive of torch ({str(error)[:100]})") from error


def _count(
    value: Any, depth: int, known: dict[int, float], views: dict[Any, int], storages: dict[int, int]
) -> float:
    """Return how many values a value has, or infinity, and note the bytes of its tensors."""
    if id(value) in known:
        return known[id(value)]  # counts once more
    parts: list[Any] = []
    if is_plain_tensor(value):
        storage = value.untyped_storage()
        if value.nbytes > storage.nbytes():
            what = f"a tensor declares the shape {tuple(value.shape)}"[:100]
            raise Damaged(f"{what}, for which the file has too few numbers")
        storages[storage.data_ptr()] = storage.nbytes()
        views[value.data_ptr(), value.shape, value.stride(), value.dtype] = value.nbytes
    elif isinstance(value, argparse.Namespace):
        parts = list(vars(value).values())
    elif isinstance(value, dict):
        parts = [*value, *value.values()]
    elif isinstance(value, list | tuple | set):
        parts = [*value]
    elif isinstance(value, bytes):
        return len(value)
    elif value is not None and not isinstance(value, (*PLAIN, complex)):
        raise Damaged(f"it has more than plain weights and values: {type(value).__name__}")
    if not parts:
        return 1
    if depth == DEEPEST:
        raise Damaged(f"its values are nested more than {DEEPEST} deep")
    known[id(value)] = math.inf
    count = 1 + sum(_count(part, depth + 1, known, views, storages) for part in parts)
    known[id(value)] = count
    return count


def foreign_value(optimizer: Mapping[str, Any], weights: Mapping[str, Any] | None = None) -> str:
    """Return what no saved state may hold in an optimizer's or a model's; "" if all is plain."""
    groups = dict(enumerate(optimizer.get("param_groups", ())))
    named: list[tuple[str, Any]] = []
    for part in (optimizer.get("state", {}), groups):
        for key, values in part.items():
            own = values if isinstance(values, dict) else {key: values}
            named += [(f"the optimizer's {name}", value) for name, value in own.items()]
    named += [(f"the model's {name}", value) for name, value in (weights or {}).items()]
    for name, value in named:
        if not is_plain(value):
            return f"{name} is a {type(value).__name__} that is not plain"
    return ""
