"""Store the items that a script's Dataset returns, and serve them from the store afterwards.

While items are collected, each process writes them into memory maps of a temporary folder, at the
place of their number. When all are there, they become one store of ours: `KEY.h5` in the cache,
beside `KEY.files`, the list of the files that they were made from.
A killed script leaves only the folder, which the next one removes.
"""

import hashlib
import os
import shutil
import socket
from collections.abc import Iterable, Sized
from contextlib import suppress
from operator import index as number_of
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from torch.utils.data import IterableDataset

from framework.commands.watch.item_check import (
    NUM_CHECKED,
    checked_indices,
    checked_layout,
    copied,
    read_again,
    refuse_differing,
)
from framework.commands.watch.item_files import ItemFiles, compared_files, source_lines
from framework.commands.watch.item_layout import ItemLayout, LayoutError
from framework.contracts.records import Manifest, NumberKeys
from framework.data.dataset import title_of
from framework.errors import PacelineError
from framework.order.batches import spread
from framework.store.hdf5_store import HDF5Store, HDF5Writer
from framework.system.code_digest import digest_of
from framework.system.durable import open_durable, remove_leftovers
from framework.system.rng import generator_mark

BLOCK = 1024  # items that are written at once
# The collected items and the store exist side by side for a moment.
COPIES = 2
NUM_COMPARED = 4  # items for each new iterator, and another each time


@final
class ItemStores:
    """The stores of all Datasets of a script.

    Args:
        folder: The cache.

    Attributes:
        notes: What happened to each Dataset, by its title.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).absolute()
        self.notes: dict[str, str] = {}
        self._known: dict[str, StoredItems | None] = {}

    def served(self, dataset: Any) -> Any:
        """Return what serves the items of a Dataset: a store, or the Dataset if it cannot be."""
        if isinstance(dataset, IterableDataset | ServedItems):
            self._note(dataset, "an IterableDataset has no items by number")
            return dataset
        try:
            key = key_of(dataset)
        except LayoutError as error:
            self._note(dataset, str(error))
            return dataset
        if key not in self._known:
            self._known[key] = self._opened(dataset, key)
        elif (known := self._known[key]) is not None:
            known.compare(dataset)
        stored = self._known[key]
        if stored is None:
            return dataset
        stored.publish()
        self._note(dataset, stored.words)
        return dataset if stored.fault else ServedItems(stored)

    def publish(self) -> None:
        """Write the stores of which all items were collected."""
        for stored in self._known.values():
            if stored is not None:
                stored.publish()
                self._note(stored.dataset, stored.words)

    def close(self) -> None:
        """Publish what is complete, and remove what is not."""
        self.publish()
        for stored in self._known.values():
            if stored is not None:
                stored.discard()

    def _opened(self, dataset: Any, key: str) -> "StoredItems | None":
        path = self.folder / f"{key}.h5"
        try:
            stored = _checked(dataset, path)
        except (LayoutError, PacelineError) as error:
            self._note(dataset, str(error))
            return None
        except Exception as error:  # noqa: BLE001  # a user's Dataset may do anything
            self._note(dataset, f"reading items fails here ({type(error).__name__}: {error})")
            return None
        return stored

    def _note(self, dataset: Any, words: str) -> None:
        if not isinstance(dataset, ServedItems):
            size = f" ({len(dataset):,})" if isinstance(dataset, Sized) else ""
            self.notes[f"{title_of(dataset)}{size}"] = words


def _checked(dataset: Any, path: Path) -> "StoredItems":
    """Return what serves the items of a Dataset, after some of them were read twice.

    Raises:
        LayoutError: They cannot be stored.
    """
    files = ItemFiles()
    copy = copied(dataset)
    with files.noted():
        layout, items = checked_layout(copy)
    stored = StoredItems(dataset, layout, path, files)
    stored.open(items)  # while the copy still has its files open
    return stored


def key_of(dataset: Any) -> str:
    """Return a name for what a Dataset returns: its state, its code and its number of items.

    Raises:
        LayoutError: Its state cannot be pickled, or it has no length.
    """
    if not isinstance(dataset, Sized):
        raise LayoutError("the Dataset has no length")
    code = digest_of(dataset)
    if code.state is None:
        raise LayoutError(f"the Dataset cannot be pickled ({code.fault})"[:200])
    words = f"{code.files} {code.state} {len(dataset)}"
    return hashlib.sha256(words.encode()).hexdigest()[:24]


@final
class ServedItems:
    """What a DataLoader reads in place of a Dataset.

    In a worker, it is ``get_worker_info().dataset``. It has the attributes of the Dataset. A script
    that uses them there may change what items are, so that they are not served any more.
    """

    _stored_items: "StoredItems"

    def __init__(self, stored_items: "StoredItems") -> None:
        object.__setattr__(self, "_stored_items", stored_items)

    def __reduce__(self) -> tuple[Any, ...]:
        return ServedItems, (self._stored_items,)

    def __len__(self) -> int:
        return self._stored_items.num_items

    def __getitem__(self, index: Any) -> Any:
        return self._stored_items.items([index])[0]

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """Return items, as DataLoader's fetcher asks for them."""
        return self._stored_items.items(indices)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = getattr(self._stored_items.dataset, name)
        self._stored_items.stop(f"a worker uses the Dataset's attribute {name}")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        self._stored_items.stop(f"a worker sets the Dataset's attribute {name}")
        setattr(self._stored_items.dataset, name, value)


@final
class StoredItems:
    """The items of a map-style Dataset, which are remembered.

    It can be sent to worker processes, which write and read the same maps.

    Args:
        dataset: The user's Dataset.
        layout: The layout of its items.
        path: The store.
        files: The files that the items are made from, as far as they are known.
    """

    def __init__(self, dataset: Any, layout: ItemLayout, path: Path, files: ItemFiles) -> None:
        self.dataset = dataset
        self.layout = layout
        self.path = path
        self.listing = path.with_suffix(".files")
        self.files = files
        self.num_items = len(dataset)
        self.store: HDF5Store | None = None
        self.is_reused = False
        self.num_files = 0  # that have not changed since the store was written
        self.outdated = ""  # why the store of an earlier run was not used
        self.failure = ""  # why the store cannot be written
        # All ranks of a host share the folder, and have the same parent.
        owner = os.getppid() if "RANK" in os.environ else os.getpid()
        self.folder = path.with_name(f"{path.name}.tmp.{socket.gethostname()}.{owner}.items")
        self._fault = ""
        self._num_comparisons = 0
        self._maps: list[np.ndarray] | None = None
        self._done: np.ndarray | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "files": ItemFiles(), "_maps": None, "_done": None}

    def items(self, indices: Iterable[Any]) -> list[Any]:
        """Return items, from the store if they are there.

        An index may be anything that the Dataset takes. Only the numbers of items are served.
        """
        indices = list(indices)
        if self.fault:
            return [self.dataset[index] for index in indices]
        numbers = [self._number(index) for index in indices]
        if self.store is None:
            return self._from_maps(indices, numbers)
        places = [number for number in numbers if number is not None]
        stored = iter(self._from_store(self.store, places))
        return [
            self.dataset[index] if number is None else next(stored)
            for index, number in zip(indices, numbers, strict=True)
        ]

    def _number(self, index: Any) -> int | None:
        """Return the number of the item that an index means, or None."""
        try:
            number = number_of(index)
        except TypeError:
            number = None
        # A tensor with a single number is an index too, but the Dataset may return a batch for it.
        if number is None or (isinstance(index, torch.Tensor) and index.ndim > 0):
            self._note_misfit(f"an index of the sampler is a {type(index).__name__}, not a number")
            return None
        return number if 0 <= number < self.num_items else None

    @property
    def fault(self) -> str:
        """Why nothing is served any more, in any process; "" as long as items are served."""
        path = self.folder / "fault"
        if not self._fault and path.exists():
            with suppress(FileNotFoundError):
                self._fault = path.read_text(encoding="utf-8")
        return self._fault

    def compare(self, dataset: Any) -> None:
        """Read some of the stored items anew, and stop if one differs.

        The state of a Dataset does not hold all that its items depend on, such as global variables.
        """
        if self.fault:
            return
        numbers = self._compared_numbers()
        try:
            kept = self._kept_arrays(numbers)
            made = read_again(dataset, self.layout, numbers)
            for number, before, now in zip(numbers, kept, made, strict=True):
                what = f"item {number}: reading it again gives another"
                refuse_differing(self.layout, before, now, what)
        except LayoutError as error:
            self.stop(f"they have changed ({error})")
        except Exception as error:  # noqa: BLE001  # a user's Dataset may do anything
            self.stop(f"reading them again fails ({type(error).__name__}: {error})")

    def stop(self, why: str) -> None:
        """Leave all items to the Dataset from now on, also in the other processes."""
        self._fault = why
        with suppress(OSError):
            self.folder.mkdir(exist_ok=True)
            (self.folder / "fault").write_text(why, encoding="utf-8")

    def open(self, items: list[list[np.ndarray]]) -> None:
        """Open the store; without one that holds what the Dataset returns now, make the maps.

        Args:
            items: The checked items.

        Raises:
            LayoutError: The disk has no room.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.path.parent)  # also those of a Dataset that has changed since
        if self.path.exists():
            self.outdated = self._outdated(items)
            if not self.outdated:
                self.store = HDF5Store(str(self.path))
                self.is_reused = True
                return
            self.path.unlink(missing_ok=True)  # so that no rank takes it for the new one
        self._check_room()
        self.folder.mkdir(exist_ok=True)
        self._begin_list()
        self._open_maps()

    def _begin_list(self) -> None:
        self.files.note_named(self.dataset)
        self.files.note_open()
        (self.folder / "files").touch()
        self.files.write(self.folder / "files")

    def _check_room(self) -> None:
        needed = COPIES * self.num_items * self.layout.item_bytes
        free = shutil.disk_usage(self.path.parent).free
        if needed > free:
            sizes = f"{needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free"
            raise LayoutError(f"storing all items takes {sizes} in {self.path.parent}")

    def publish(self) -> None:
        """Write the store if all items were collected."""
        if self.store is not None or self.failure or self._done is None or not self._done.all():
            return
        if self.fault:
            return
        if os.environ.get("LOCAL_RANK", "0") == "0":
            self._write_store()
        if self.path.exists():
            self.store = HDF5Store(str(self.path))
            self._maps = self._done = None
            self.discard()

    def _write_store(self) -> None:
        source = f"dataset {title_of(self.dataset)}"
        options = {"watch": self.layout.words}
        fields = self.layout.fields
        writer = HDF5Writer(str(self.path), fields=fields, num_records=self.num_items)
        try:
            self._write(writer)
            with open_durable(self.listing) as file:
                file.writelines(source_lines(self.folder / "files"))
            writer.close(Manifest(self.num_items, fields, source=source, options=options))
        except (PacelineError, ValueError) as error:  # the script continues with the maps
            self.failure = str(error)
            self.listing.unlink(missing_ok=True)
        finally:
            writer.abort()

    def discard(self) -> None:
        """Remove the maps. A process that has them open keeps them."""
        if os.environ.get("LOCAL_RANK", "0") == "0":
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def words(self) -> str:
        """Where the items are, or why they are not stored."""
        size = f"{self.num_items * self.layout.item_bytes / 1e6:,.1f} MB"
        place = f"{self.path} ({size})"
        if self.fault:
            return f"the Dataset makes all items: {self.fault}"
        if self.is_reused:
            return f"{self.num_items:,} items come from {place} of an earlier run; {self._compared}"
        if self.store is not None:
            why = self.outdated and f", since {self.outdated}"
            return f"{self.num_items:,} items were stored in {place}{why}"
        return f"nothing is kept for the next run: {self._missing}"

    @property
    def _compared(self) -> str:
        """What was compared with the store of an earlier run."""
        if self.num_files:
            return f"none of their {self.num_files:,} files has changed"
        num_checked = min(NUM_CHECKED, self.num_items)
        return f"no file of theirs is known, so that only {num_checked} items were compared"

    @property
    def _missing(self) -> str:
        """Why the items are not stored."""
        if self.failure:
            return self.failure
        note = self.folder / "misfit"
        if note.exists():
            return note.read_text(encoding="utf-8")
        assert self._done is not None
        missing = self.num_items - int(np.count_nonzero(self._done))
        return f"{missing:,} of {self.num_items:,} items were not read"

    def _write(self, writer: HDF5Writer) -> None:
        assert self._maps is not None
        for start in range(0, self.num_items, BLOCK):
            stop = min(start + BLOCK, self.num_items)
            pairs = zip(self.layout.leaves, self._maps, strict=True)
            records = {leaf.name: np.array(rows[start:stop]) for leaf, rows in pairs}
            writer.write(records, NumberKeys(start, stop))

    def _outdated(self, items: list[list[np.ndarray]]) -> str:
        """Return why the store of an earlier run cannot be used; "" if it can."""
        if not self._matches(items):
            return "items of an earlier run differ"
        try:
            self.num_files, changed = compared_files(self.listing)
        except (OSError, ValueError):
            return "an earlier run did not list their files"
        return changed and f"{changed} has changed"

    def _matches(self, items: list[list[np.ndarray]]) -> bool:
        """Return whether the store holds the checked items."""
        store = HDF5Store(str(self.path))
        try:
            if store.manifest.options.get("watch") != self.layout.words:
                return False
            rows = self._rows(store, checked_indices(self.num_items))
            for arrays, stored in zip(items, rows, strict=True):
                kept = [row.numpy() for row in stored]
                refuse_differing(self.layout, arrays, kept, "stored otherwise:")
        except (PacelineError, LayoutError):
            return False
        finally:
            store.close()
        return True

    def _compared_numbers(self) -> list[int]:
        """Return the numbers of stored items from all over the set, and another each time."""
        self._num_comparisons += 1
        another = int(np.random.default_rng(self._num_comparisons).integers(self.num_items))
        places = spread(self.num_items, min(NUM_COMPARED, self.num_items)).tolist()
        numbers = {*places, another}
        if self.store is None:
            done = self._done
            assert done is not None
            following = {place + int(np.argmax(done[place:])) for place in numbers}
            numbers = {number for number in following if done[number]}
        return sorted(numbers)

    def _kept_arrays(self, numbers: list[int]) -> list[list[np.ndarray]]:
        """Return the arrays of stored items."""
        if self.store is not None:
            return [[row.numpy() for row in rows] for rows in self._rows(self.store, numbers)]
        assert self._maps is not None
        return [[np.array(rows[number]) for rows in self._maps] for number in numbers]

    def _rows(self, store: HDF5Store, numbers: list[int]) -> list[list[torch.Tensor]]:
        """Return the fields of some items from a store."""
        records = store.read(torch.tensor(numbers))
        columns = [records[leaf.name] for leaf in self.layout.leaves]
        return [[column[place] for column in columns] for place in range(len(numbers))]

    def _from_store(self, store: HDF5Store, numbers: list[int]) -> list[Any]:
        if not numbers:
            return []
        return [self.layout.item(rows) for rows in self._rows(store, numbers)]

    def _from_maps(self, indices: list[Any], numbers: list[int | None]) -> list[Any]:
        """Return items from the maps, or from the Dataset, whose items are then kept there.

        Items of a batch that draws random numbers are not kept: the next ones are others.
        """
        made: list[int] = []
        written: list[int] = []
        mark: tuple[Any, ...] | None = None  # it takes as long as making a simple item
        items: list[Any] = []
        for index, number in zip(indices, numbers, strict=True):
            if number is None or not self._has_maps():
                items.append(self.dataset[index])
            elif self._done is not None and self._done[number]:
                items.append(self._kept(number))
            else:
                mark = mark or generator_mark()
                with self.files.noted():
                    items.append(self.dataset[index])
                made.append(number)
                if self._write_item(number, items[-1]):
                    written.append(number)
        if mark is not None and generator_mark() != mark:
            self.stop(f"item {made[0]}, or another of its batch, draws random numbers")
        else:
            self._mark_done(written)
        return items

    def _note_misfit(self, words: str) -> None:
        """Note, for all processes, why an item is not stored."""
        with suppress(FileNotFoundError):
            (self.folder / "misfit").write_text(words, encoding="utf-8")

    def _has_maps(self) -> bool:
        """Return whether the maps are open. Another rank may have made the store of them."""
        if self._maps is None or self._done is None:
            with suppress(FileNotFoundError):
                self._open_maps()
        return self._maps is not None

    def _kept(self, number: int) -> Any:
        assert self._maps is not None
        return self.layout.item([torch.from_numpy(np.array(rows[number])) for rows in self._maps])

    def _write_item(self, number: int, item: Any) -> bool:
        """Write an item into the maps. Return whether it has the layout of the others."""
        assert self._maps is not None
        try:
            arrays = self.layout.arrays(item)
        except LayoutError as error:
            self._note_misfit(f"item {number}: {error}")
            return False
        for rows, array in zip(self._maps, arrays, strict=True):
            rows[number] = array
        return True

    def _mark_done(self, numbers: list[int]) -> None:
        if numbers and self._done is not None:
            # The disk may be full, or another rank has made the store meanwhile.
            with suppress(OSError):
                self.files.write(self.folder / "files")
                self._done[numbers] = 1

    def _open_maps(self) -> None:
        self._done = self._map("done", "uint8", ())
        self._maps = [
            self._map(f"leaf{number}", leaf.dtype, leaf.shape)
            for number, leaf in enumerate(self.layout.leaves)
        ]

    def _map(self, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the array of a file, which is made if it does not exist yet."""
        path = self.folder / name
        size = self.num_items * np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)
        if not size:
            return np.zeros((self.num_items, *shape), dtype)
        return np.memmap(path, dtype, "r+", 0, (self.num_items, *shape))
