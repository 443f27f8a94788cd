"""Which values a saved state may hold, and how they are read.

A state holds what is read again without running any code.
"""

import argparse
import copy
import io
import math
import os
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from typing import IO, Any

import torch
from torch import Tensor, nn
from torch.serialization import safe_globals

from framework.contracts.parallel import Parallel

PLAIN = (bool, int, float, str, torch.dtype, torch.device)
LARGEST = 1 << 63  # no tensor holds an integer of this size
# How much more than the file's length its tensors may take together. Views of one storage overlap
# in few files, and tied weights count once.
MOST_VIEWED = 4
MOST_SHARED = 8  # how many values may come of a byte of a file that refers to some repeatedly
DEEPEST = 100  # lists in lists


class Damaged(Exception):
    """A file is not what was saved. The text says why."""


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

    Args:
        file: An open file with a name.
        is_whole: Whether its bytes were compared with a checksum. If not, the checksums of its
            parts are, and the numbers stay on the disk until they are used.

    Raises:
        Damaged: It is cut off, is of another format, holds more than plain values, or would take
            much more memory than it is long.
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
    """Return how many values a value consists of. One that holds itself is infinite.

    Note the bytes of its tensors in ``views``, and of their storages. Raise Damaged for values that
    are not plain.
    """
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
    return next((f"{name} is {_inside(value)}" for name, value in named if not is_plain(value)), "")


def _inside(value: Any) -> str:
    """Name the type of a value, and of the first part of it that is not plain."""
    name = type(value).__name__
    if isinstance(value, Tensor):
        return f"{name} of a layout or kind that cannot be checked"
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        for part in parts:
            if not is_plain(part):
                return f"{name} with {_inside(part)}"
    return name
