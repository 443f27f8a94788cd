"""Load what ``torch.save`` wrote. Every claim in the file is checked before memory is taken.

A small file could otherwise declare any amount of memory: by compression, by a tensor with the
stride 0, by many tensors over the same numbers, or by lists that hold one list many times.
"""

import argparse
import io
import math
import os
import pickle
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar, final

import torch
from torch.serialization import safe_globals

# How much more than the file's length its tensors may take together. Views of one storage overlap
# in few files, and tied weights count once.
MOST_VIEWED = 4
MOST_SHARED = 8  # how many values may come of a byte of the pickle, if it refers to some repeatedly
DEEPEST = 100  # lists in lists
LEGACY_PICKLES = 5  # before the numbers in a file of torch before 1.6
ITEM_BYTES = {
    "ComplexDouble": 16,
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Char", "Byte", "Bool", "Untyped"), 1),
}
TENSORS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
PARAMETERS = ("_rebuild_parameter", "_rebuild_parameter_with_state")
# What a file may make beside tensors. torch allows more, such as a bytearray of any length.
VALUES = (
    "collections.OrderedDict",
    "collections.Counter",
    "builtins.set",
    "builtins.complex",
    "_codecs.encode",  # how Python writes bytes
    "torch.Size",
    "torch.device",
    "argparse.Namespace",  # the arguments of a script
)
# the operations of pickles that torch reads, too
OPERATIONS = b"c\x81RbaesuM(t\x85\x86\x87N\x88\x89)]}\x8fJKGXUQhjqr\x8a\x80."
MORE_NUMBERS = "it declares more numbers than it has"
TENSOR = object()  # stands for a tensor whose claims hold


class Damaged(Exception):
    """A file is not what was saved. The text says why."""


def load_checked(file: IO[bytes], is_whole: bool = False) -> Any:
    """Return the plain values and tensors of a file, on the CPU. Nothing in it is executed.

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
        is_zip = file.read(4) == b"PK\3\4"
        file.seek(0)
        if is_zip:
            _check_zip(file, size, is_whole)
        else:
            for _ in range(LEGACY_PICKLES):
                _Checker(file, size, None).check()
        file.seek(0)
        source = file if is_whole else file.name
        with safe_globals([argparse.Namespace]):
            mmap = is_zip and not is_whole
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    except (Damaged, OSError):
        raise
    except Exception as error:  # a hostile pickle can raise anything
        # torch's own message would advise to run the file
        what = f"not plain weights and values, or not torch's format ({type(error).__name__})"
        raise Damaged(what) from error


def _check_zip(file: IO[bytes], size: int, is_whole: bool) -> None:
    """Raise Damaged unless an archive is as long as what it and its pickle declare."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            # zipfile looks for the directory before the end, torch looks where the archive says
            *_, start, _, _, end = zipfile._EndRecData(file)  # pyright: ignore[reportAttributeAccessIssue]  # noqa: SLF001
            file.seek(max(0, end - 20))
            locator = file.read(20)
            is_long = locator[:4] == b"PK\6\7"
            if start != archive.start_dir or (
                is_long and int.from_bytes(locator[8:16], "little") != end - 76
            ):
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
            folder = members[0].filename.partition("/")[0] if members else ""
            data = archive.read(f"{folder}/data.pkl")
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, KeyError) as error:
        raise Damaged(f"cut off, or no archive of torch ({str(error)[:100]})") from error
    storages = f"{folder}/data/"
    sizes = {
        member.filename.removeprefix(storages): member.file_size
        for member in members
        if member.filename.startswith(storages)
    }
    _Checker(io.BytesIO(data), size, sizes).check()


@final
@dataclass
class _Global:
    """What a pickle names. Calling it checks what torch would make of its arguments."""

    name: str
    checker: "_Checker"

    def __call__(self, *args: Any) -> Any:
        return self.checker.call(self.name, args)


@final
class _Value(dict[Any, Any]):
    """A value that is no tensor, and what it was made of."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.parts = [*args]


@final
@dataclass
class _Storage:
    """Numbers in the file."""

    key: str
    num_bytes: int
    item_bytes: int


@final
class _Checker(pickle._Unpickler):  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001  # Python's own: C's takes the memory that a pickle asks for
    """Reads a pickle as torch would, without making anything that it names.

    ``file`` stands at the pickle, and the whole file has ``size`` bytes. ``sizes`` are the bytes of
    each storage by its key; None if the file does not say.
    """

    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]] = {
        code: pickle._Unpickler.dispatch[code]  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        for code in OPERATIONS
    }

    def __init__(self, file: IO[bytes], size: int, sizes: dict[str, int] | None) -> None:
        super().__init__(file, encoding="bytes")
        self._storages: dict[str, int] = {}  # the bytes of each by its key
        self._file = file
        self._size = size
        self._sizes = sizes
        self._views: set[Any] = set()
        self._viewed = 0  # bytes of all different tensors
        self._copied = 0  # values that torch copies while it reads the pickle

    def check(self) -> None:
        """Raise Damaged unless all claims hold. Others raise what else Python raises."""
        start = self._file.tell()
        value = self.load()
        count, depth = _extent(value, {})
        most = MOST_SHARED * (self._file.tell() - start)
        if depth > DEEPEST:
            raise Damaged(f"its values are nested more than {DEEPEST} deep")
        if count + self._copied > most:
            raise Damaged("it refers to some of its values too often, or a list holds itself")
        if sum(self._storages.values()) > self._size:
            raise Damaged("it declares more bytes than it has")

    def find_class(self, module: str, name: str) -> _Global:
        # torch names Python's own module as Python 2 did
        return _Global(f"{module.replace('__builtin__', 'builtins')}.{name}", self)

    def _build(self) -> None:
        state = self.stack.pop()
        value = self.stack[-1]
        if type(value) is not _Value:
            raise Damaged("it changes what is no object")
        value.parts.append(state)
        self._copied += len(state)

    def _new(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = self.stack[-1](*args)

    dispatch |= {pickle.BUILD[0]: _build, pickle.NEWOBJ[0]: _new}

    def call(self, name: str, args: Sequence[Any]) -> Any:
        """Return a stand-in for what torch makes of a call."""
        self._copied += sum(len(arg) for arg in args if hasattr(arg, "__len__"))
        function = name.removeprefix("torch._utils.")
        if function in TENSORS:
            return self._tensor(function, *args)
        if function in PARAMETERS and args[0] is TENSOR:
            return TENSOR
        if name == "torch._tensor._rebuild_from_type_v2":  # a tensor with attributes
            make, kind, own_args, _ = args
            if kind.name in ("torch.Tensor", "torch.nn.parameter.Parameter"):
                return make(*own_args)
        if name in VALUES:
            return _Value(args)
        raise Damaged(f"it has more than plain weights and values: {name[:100]}")

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the numbers that the pickle refers to."""
        _, kind, key, _, numel, *view = pid
        item_bytes = ITEM_BYTES.get(kind.name.rpartition(".")[2].removesuffix("Storage"))
        if item_bytes is None or type(numel) is not int or numel < 0:
            raise Damaged(f"it has numbers of the kind {kind.name[:100]}")
        num_bytes = numel * item_bytes
        real = num_bytes if self._sizes is None else self._sizes.get(key, -1)
        if num_bytes > real or self._storages.setdefault(key, num_bytes) != num_bytes:
            raise Damaged(MORE_NUMBERS)
        if view and view[0] is not None:
            _, offset, numel = view[0]
            if min(offset, numel) < 0 or (offset + numel) * item_bytes > num_bytes:
                raise Damaged(MORE_NUMBERS)
        return _Storage(key, numel * item_bytes, item_bytes)

    def _tensor(
        self, make: str, storage: _Storage, offset: int, shape: Any, strides: Any, *rest: Any
    ) -> Any:
        item_bytes = storage.item_bytes
        if make == TENSORS[-1]:  # of a dtype that has no storage of its own
            item_bytes = getattr(torch, rest[2].name.removeprefix("torch.")).itemsize
        if min(offset, *shape, *strides, 0) < 0 or len(shape) != len(strides):
            raise Damaged("a tensor has a negative shape or stride")
        numel = math.prod(shape)
        last = offset + sum((n - 1) * by for n, by in zip(shape, strides, strict=True))
        if numel and max(numel, last + 1) * item_bytes > storage.num_bytes:
            what = f"a tensor declares the shape {tuple(shape)}"[:100]
            raise Damaged(f"{what}, for which the file has too few numbers")
        view = (storage.key, offset, tuple(shape), tuple(strides))
        if view not in self._views:
            self._views.add(view)
            self._viewed += numel * item_bytes
        if self._viewed > MOST_VIEWED * self._size:
            raise Damaged("its tensors declare the same numbers too often")
        return TENSOR


def _extent(value: Any, known: dict[int, tuple[float, int]]) -> tuple[float, int]:
    """Return how many values a value consists of, and how deep they are nested.

    A value that is referred to twice counts twice, and one that holds itself is infinite.
    """
    if not isinstance(value, list | tuple | dict):
        return 1, 0
    if id(value) not in known:
        known[id(value)] = math.inf, 0
        parts: list[Any] = [*value, *value.values()] if isinstance(value, dict) else [*value]
        if type(value) is _Value:
            parts += value.parts
        extents = [_extent(part, known) for part in parts]
        count = 1 + sum(count for count, _ in extents)
        known[id(value)] = count, 1 + max((depth for _, depth in extents), default=0)
    return known[id(value)]
