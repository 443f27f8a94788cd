"""Image files in one subfolder per class: the form that most data sets come in."""

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field, Manifest, Records, RecordStore
from framework.errors import DataError
from framework.media.decode import encode_png, shared_channels
from framework.media.header import BadImage, read_header
from framework.store import files, foreign
from framework.store.files import SUFFIXES, is_class, read_files, walk
from framework.system.durable import sync, temporary_name

FOLLOW_KEY = "data.follow_links"
LONGEST_NAME = 240  # bytes of a class name; file systems allow 255


@final
class FolderStore(RecordStore):
    """A RecordStore over image files, with the fields ``image`` and ``label``.

    Classes and files come in the byte order of their names. ``follow_links`` is that of ``walk``.
    DataError D101 if the folder is missing, D106 if the first image cannot be read, D110 or D191 if
    no subfolder holds an image.
    """

    samples_colors = has_columns = times_records = reads_starts = True

    def __init__(self, path: str, follow_links: str | None = None) -> None:
        self.path = path
        self._root = os.path.join(path, "")
        if os.path.isfile(path):
            foreign.refuse_other(path, "folder")
        walked = walk(path, SUFFIXES, follow_links, hidden=False)
        images = files.images_of(walked)
        self.notes = (*walked.notes(FOLLOW_KEY), *files.loose_notes(walked, len(images), "image"))
        if not images:
            foreign.refuse_other(path, "folder")
            fix = f"one subfolder per class, with files {' '.join(SUFFIXES)}"
            raise walked.nothing("no image in any subfolder", fix, FOLLOW_KEY)
        classes = list(filter(is_class, walked.folders))
        numbers = {name: number for number, name in enumerate(classes)}
        self.files = [name for _, name in images]
        self.labels = torch.tensor([numbers[name] for name, _ in images])
        counts = torch.bincount(self.labels, minlength=len(classes)).tolist()
        image = image_field(self.name(0), len(images), lambda row: read_files([self.name(row)])[0])
        fields = {"image": image, "label": Field("int64", ())}
        digest = files.sampled_digest([self._root + name for name in self.files], self.files)
        self._manifest = Manifest(len(images), fields, classes, counts, source=path, digest=digest)

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        return self.read_timed(indices, None)

    def read_timed(self, indices: Tensor, seconds: "memoryview[float] | None") -> Records:
        images = read_files([self.name(index) for index in indices.tolist()], seconds)
        return {"image": images, "label": self.labels[indices]}

    def column(self, name: str) -> Any:
        indices = torch.arange(len(self.files))
        return self.labels if name == "label" else self.read(indices)[name]

    def read_start(self, index: int, num_bytes: int) -> bytes:
        return files.read_head(self.name(index), num_bytes)

    def key(self, index: int) -> str:
        return self.files[index]

    def name(self, index: int) -> str:
        return self._root + self.files[index]


@final
class FolderWriter:
    """A RecordWriter of image files, the reverse of packing: ``<class>/<record>.png``.

    Encoded images are written as they are, pixels as PNG. Files are named by number, because a key
    need not be a file name. DataError D114 for fields that a folder of images cannot hold.
    """

    def __init__(self, path: str, *, fields: Mapping[str, Field], num_records: int) -> None:
        image, label = fields.get("image"), fields.get("label")
        what = ""
        if image is None or label is None or len(fields) != 2:
            what = f"a folder of images cannot hold {sorted(fields)}"
        elif "labels" in (image.kind, label.kind):
            what = "a folder of images cannot say that they are label maps"
        elif label.shape or np.dtype(label.dtype).kind not in "biu":
            what = f"label {label.dtype} {list(label.shape)} is not the number of a class"
        elif image.channels is None and ((image.dtype, len(image.shape)) != ("uint16", 3)):
            what = f"an image file cannot hold image {image.dtype} {list(image.shape)}"
        if what:
            raise DataError(114, path, what, "choose output=hdf5 or lmdb")
        self.path = Path(path)
        self._row = 0
        self._interleaved = fields["image"].interleaved
        if self.path.exists():
            raise DataError(115, path, "is there already", "remove it or choose another place")
        self._temporary = temporary_name(self.path)
        self._is_open = True
        self._temporary.mkdir(parents=True)

    def write(self, records: Records, keys: Sequence[str]) -> None:
        for image, label in zip(records["image"], records["label"], strict=True):
            folder = self._temporary / f".{int(label)}"
            folder.mkdir(exist_ok=True)
            if self._interleaved:
                image = image.transpose(2, 0, 1)  # noqa: PLW2901
            data = encode_png(image) if isinstance(image, np.ndarray) else bytes(image)
            form = read_header(data).format
            suffix = {"jpeg": "jpg", "tiff": "tif"}.get(form, form)
            (folder / f"{self._row:09d}.{suffix}").write_bytes(data)
            self._row += 1

    def close(self, manifest: Manifest) -> None:
        for number, name in enumerate(manifest.classes):
            # A store must not write outside this folder, and readers skip hidden folders.
            is_plain = os.path.basename(name) == name and name and not name.startswith(".")
            if not is_plain or "\0" in name or len(os.fsencode(name)) > LONGEST_NAME:
                what = f"a folder cannot have the name of class {name[:100]!r}"
                raise DataError(114, str(self.path), what, "rename the class")
            with suppress(FileNotFoundError):  # a class without records
                (self._temporary / f".{number}").rename(self._temporary / name)
        for folder in self._temporary.glob(".*"):  # labels without a class
            folder.rename(self._temporary / folder.name[1:])
        for place in [*self._temporary.rglob("*"), self._temporary]:
            sync(place)
        self._temporary.rename(self.path)
        sync(self.path.parent)
        self._is_open = False

    def abort(self) -> None:
        if self._is_open:
            shutil.rmtree(self._temporary, ignore_errors=True)


def image_field(
    where: str,
    count: int,
    read: Callable[[int], Any],
    is_map: bool = False,
    fix: str = "correct or remove it",
) -> Field:
    """Return the field of ``count`` image files, by a sample. DataError D106 for the first one."""
    try:
        channels = shared_channels(1 if is_map else count, read)
    except (BadImage, ValueError) as error:
        raise DataError(106, where, f"not a readable image ({error})", fix) from error
    if is_map:
        return Field("uint8", (1, None, None), "image", "labels")
    return Field("uint8", (channels, None, None), "image")
