"""Image files as they lie: a subfolder per class. The unpacked baseline everybody starts from."""

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.records import Field, Manifest, Records
from framework.errors import DataError
from framework.image.decode import BadImage, encode_png, image_suffix, num_channels
from framework.store.walk_tree import Walked, walk
from framework.system.durable import sync, temporary_name

PARTS = ".parts"  # how the folders of a packing that is under way end
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
FOLLOW_KEY = "data.follow_links"
LONGEST_NAME = 240  # bytes, of a class; a file system takes 255, and we put something before it


@final
class FolderStore:
    """A RecordStore over image files: fields ``image`` and ``label``; classes and files in the byte order of their names."""

    def __init__(self, path: str, follow_links: str | None = None) -> None:
        self.path = path
        walked = walk(path, SUFFIXES, follow_links)
        note = walked.link_note(FOLLOW_KEY)
        self.notes: tuple[str, ...] = () if note is None else (note,)
        self.files, labels, classes = _images_of(walked)
        self.labels = torch.tensor(labels)
        counts = torch.bincount(self.labels, minlength=len(classes)).tolist()
        fields = {
            "image": Field("uint8", (self._channels(), None, None), "image"),
            "label": Field("int64", ()),
        }
        self.manifest = Manifest(len(labels), fields, classes, counts, source=path)

    def _channels(self) -> int:
        try:
            return num_channels(self.read_bytes(0))
        except (BadImage, ValueError) as error:
            raise DataError(
                106, self.name(0), f"not a readable image ({error})", "mend or remove it"
            ) from error

    def read(self, indices: Tensor, views: Collection[str] = ()) -> Records:
        return {
            "image": [self.read_bytes(index) for index in indices.tolist()],
            "label": self.labels[indices],
        }

    def read_bytes(self, index: int) -> bytes:
        """File ``index`` as it is. DataError D101 where it cannot be read."""
        try:
            return Path(self.name(index)).read_bytes()
        except OSError as error:
            raise DataError(
                101, self.name(index), f"cannot be read ({error.strerror})", "mend or remove it"
            ) from error

    def damaged(self, indices: Tensor, records: Records) -> list[int]:
        return []  # files have no checksums

    def key(self, index: int) -> str:
        return self.files[index]

    def name(self, index: int) -> str:
        return os.path.join(self.path, self.files[index])

    def check(self) -> None:
        pass  # each file is opened anew for every record

    def close(self) -> None:
        pass  # files are opened and closed one by one


def list_images(
    path: str, follow_links: str | None = None
) -> tuple[list[str], list[int], list[str]]:
    """(relative names, class numbers, class names) of the images under ``path``; ``follow_links``: as in ``data.tree.walk``.

    Raises DataError D101 (no such folder), D110 (no image in a subfolder) or D191 (none but links).
    """
    return _images_of(walk(path, SUFFIXES, follow_links))


def _images_of(walked: Walked) -> tuple[list[str], list[int], list[str]]:
    classes = [name for name in walked.folders if is_class(name)]
    numbers = {name: number for number, name in enumerate(classes)}
    found = [
        (numbers[name.split(os.sep)[0]], name)
        for name in walked.names
        if name.split(os.sep)[0] in numbers
    ]
    if not found:
        fix = f"one subfolder per class, with files {' '.join(SUFFIXES)}"
        raise walked.nothing("no image in any subfolder", fix, FOLLOW_KEY)
    found.sort(key=lambda image: (image[0], os.fsencode(image[1])))
    return [name for _, name in found], [number for number, _ in found], classes


def is_class(name: str) -> bool:
    """Whether a folder holds a class: not what packing is making there."""
    return not name.endswith(PARTS)


@final
class FolderWriter:
    """A RecordWriter of image files, the reverse of packing: ``<class>/<record>.png`` for pixels, or the bytes as they are stored."""

    def __init__(self, path: str, *, fields: Mapping[str, Field], num_records: int) -> None:
        if set(fields) != {"image", "label"}:
            raise DataError(
                114,
                path,
                f"a folder of images cannot hold {sorted(fields)}",
                "choose output=hdf5 or lmdb",
            )
        if any(field.kind == "labels" for field in fields.values()):
            raise DataError(
                114,
                path,
                "a folder of images cannot say that they are label maps",
                "choose output=hdf5 or lmdb",
            )
        self.path, self._row, self._interleaved = Path(path), 0, fields["image"].interleaved
        if self.path.exists():
            raise DataError(115, path, "is there already", "remove it or choose another place")
        self._temporary: Path | None = temporary_name(self.path)
        self._temporary.mkdir(parents=True)

    def write(self, records: Records, keys: Sequence[str]) -> None:
        """``keys`` are not used: files are named by number, since a key need not be a file's name."""
        assert self._temporary is not None
        for image, label in zip(records["image"], records["label"], strict=True):
            folder = self._temporary / str(int(label))
            folder.mkdir(exist_ok=True)
            if isinstance(image, np.ndarray):
                data = encode_png(image.transpose(2, 0, 1) if self._interleaved else image)
            else:
                data = bytes(image)
            (folder / f"{self._row:09d}{image_suffix(data)}").write_bytes(data)
            self._row += 1

    def close(self, manifest: Manifest) -> None:
        assert self._temporary is not None
        for number, name in enumerate(manifest.classes):
            fits = os.path.basename(name) == name and name not in (
                "",
                ".",
                "..",
            )  # a store must not be able to write elsewhere
            if not fits or "\0" in name or len(os.fsencode(name)) > LONGEST_NAME:
                raise DataError(
                    114,
                    str(self.path),
                    f"a folder cannot have the name of class {name[:100]!r}",
                    "rename the class",
                )
            if (self._temporary / str(number)).exists():
                (self._temporary / str(number)).rename(self._temporary / f"named-{name}")
        for folder in self._temporary.glob("named-*"):
            folder.rename(self._temporary / folder.name.removeprefix("named-"))
        for place in [*self._temporary.rglob("*"), self._temporary]:
            sync(place)
        self._temporary.rename(self.path)
        sync(self.path.parent)
        self._temporary = None

    def abort(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
