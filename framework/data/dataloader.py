"""``data=dataloader``: take the batches of a ready DataLoader, or of any iterable, as they come."""

import re
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from contextlib import closing, suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from framework.contracts.batch import Batch, leaves, mapped, taken
from framework.contracts.data import MicroBatch, MicroBatches, Source, SourceContext
from framework.contracts.records import Manifest
from framework.data import dataset as user_data
from framework.data.fields import LabelMap
from framework.data.reader import plain
from framework.errors import ConfigError, DataError, PacelineError, UserCodeError
from framework.order.batches import Order
from framework.order.draws import record_seeds
from framework.order.sampler import END, KnowsEpoch, ask_first
from framework.system.portable import blocked
from framework.system.rng import generator_mark, kept_generators, seed_host_generators
from framework.system.user_code import is_users, short_path, user_error

# A frame in the traceback that torch's workers send as text.
FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')

ARRAYS = (Tensor, np.ndarray)
CUT = (list, *ARRAYS)  # batches of indices that a sampler of single indices may yield
SLICED = (tuple, range, *CUT)


def loader_source(
    data: Any,
    fields: Sequence[str] | None = None,
    num_batches: int | None = None,
    *,
    context: SourceContext,
) -> "LoaderSource":
    """Return a source of batches that somebody else makes.

    Args:
        data: A DataLoader, or any iterable of batches: dicts, dataclasses or tuples.
        fields: The names of a tuple's values, or the wanted fields of a dict; None: all.
        num_batches: Of an epoch of training, or of any data without a length; None: its length.
        context: The ranks, the accumulation and the seed. The batch size of its order is that of a
            step, or 0 for whatever ``data`` has.

    Raises:
        ConfigError: C174 for a setting that has no effect here, C232, C234 for anything that does
            not yield batches epoch after epoch, C235 for an unknown or too large number of batches,
            C237 for ranks that would get the same batches.
        DataError: D109 if there is no batch, D230, D233, D235 for what is no batch.
        UserCodeError: U100 for an exception in the user's code.
    """
    return LoaderSource(data, user_data.check_names(fields), num_batches, context)


class _Pass(NamedTuple):
    batch: Batch  # if a rank has no share of the user's batch, one record of another rank
    own: int  # how many of its records count
    size: int  # the records of the user's batch


@final
class LoaderSource(Source):
    """A Source of ready batches. ``index`` counts an epoch's records, unless they bring their own.

    Each rank takes its share of every batch of a DataLoader's sampler. Batches without a sampler
    cannot be cut, and must differ over the ranks. The generators of the host are seeded by (seed,
    epoch) until the first batch is there, so that a DataLoader with ``shuffle=True`` repeats its
    order. ``sample`` takes epoch 0's first batches: the user's generators give what they always do.
    """

    def __init__(
        self,
        data: Any,
        names: Sequence[str] | None,
        num_batches: int | None,
        context: SourceContext,
    ) -> None:
        self._where = user_data.split_name(context)
        order = context.order(1)  # what it says of ranks and accumulation counts
        _refuse_ignored(context, order)
        self.context = context
        self.title = user_data.title_of(data)
        self._place = f"{self._where} = {self.title}"
        self.names = names
        self._labels: LabelMap | None = None
        if not isinstance(data, Iterable):
            fix = "return a DataLoader; for a Dataset choose data=dataset"
            raise ConfigError(234, self._place, "yields no batches (no __iter__)", fix)
        if isinstance(data, Iterator):
            fix = "return a DataLoader, a list, or an object whose __iter__ begins anew"
            raise ConfigError(234, self._place, "yields its batches only once", fix)
        self.loader: Iterable[Any] = data
        self._asks_end = self._counts_records = False
        self.num_batches = self._num_batches(num_batches)
        self._rank = order.rank
        self._num_ranks = order.world_size
        # This process computes these parts of every batch.
        self._num_parts = order.virtual_ranks or order.world_size
        share = self._num_parts // order.world_size
        self._parts = range(order.rank * share, (order.rank + 1) * share)
        parts: list[Any] = [self.loader]  # those that may shuffle by the epoch
        self._sampled = ""  # the attribute of the DataLoader whose batches ranks may share
        self._cuts: bool | None = None  # whether they do; None before they have compared them
        self._drawn: list[Any] = []  # the newest epoch's batches of indices, if they are shared
        self._draws_ahead = False  # whether all of an epoch's were drawn at its beginning
        classes: list[str] = []
        sampled = 0  # records of an epoch, if torch's own sampler says it
        if isinstance(self.loader, DataLoader):
            classes = user_data.classes_of(self.loader.dataset)
            batches = self.loader.batch_sampler
            parts += [self.loader.sampler, batches, self.loader.dataset]
            if isinstance(batches, BatchSampler):
                parts.append(batches.sampler)
            is_stream = isinstance(self.loader.dataset, IterableDataset)
            if type(batches) is BatchSampler and self._asks_end and not is_stream:
                sampled = len(batches.sampler)  # pyright: ignore[reportArgumentType]  # it has one
            self.loader = self._with_own_sampler(self.loader)
        different = {id(part): part for part in parts if isinstance(part, KnowsEpoch)}
        self._knows_epoch = list(different.values())
        self._head: list[_Pass] = []  # the first passes of epoch 0
        self._ahead: Generator[_Pass] | None = None  # those that follow, once it has begun
        batch = self.sample(1)
        size = self._head[0].size
        if not self._cuts and self._num_parts > 1:
            self._check_shards(order)
            size *= order.world_size
            sampled *= order.world_size
        step_size = size * order.accumulate
        if context.training and order.batch_size not in (0, step_size):
            what = f"a step takes {step_size} records of {self.title}"
            fix = "leave it out, set accumulate, or give the DataLoader another batch_size"
            raise ConfigError(174, f"batch_size = {order.batch_size}, data = dataloader", what, fix)
        num_records = self.num_batches * size
        if num_records - size < sampled:  # the last batch may be short
            num_records = min(num_records, sampled)
        order = context.order(num_records)
        self.order = replace(order, batch_size=step_size, seed=context.seed, shuffle=False)
        fields = user_data.fields_of(batch)
        self.manifest = Manifest(num_records, fields, classes, source=f"batches of {self.title}")

    def _num_batches(self, given: int | None) -> int:
        loader = self.loader
        length: int | None = None
        with suppress(TypeError):  # of a DataLoader over a Dataset without a length
            length = len(loader) if isinstance(loader, Sized) else None
        # A plain loop asks for a batch after the last one, and so ends a sampler's epoch.
        self._asks_end = length is not None and (given is None or not self.context.training)
        if length is not None and self._asks_end:
            return length
        if not given and length is None:
            what = f"{self.title} does not know its number of batches"
            fix = "give those of an epoch: data.num_batches=1000 (in Python num_batches=1000), say"
            raise ConfigError(235, "data.num_batches = null", what, fix)
        # The length of a stream is an estimate, which may be exceeded.
        is_stream = isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset)
        if given and length and given > length and not is_stream:
            what = f"{self.title} has {length} batches"
            fix = f"leave it out, or set data.num_batches={length}"
            raise ConfigError(235, f"data.num_batches = {given}", what, fix)
        return given or 0

    def _with_own_sampler(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        own = copy(loader)
        attributes = vars(own)  # torch lets nobody set a sampler later
        attributes["_iterator"] = None
        if isinstance(loader.dataset, IterableDataset):
            return own
        self._sampled, batches = "batch_sampler", loader.batch_sampler
        if batches is None:
            self._sampled, batches = "sampler", loader.sampler
        length = self.num_batches * len(self._parts)
        attributes[self._sampled] = _Sampler(batches, length, self._shares)
        if self._num_parts > 1:
            attributes["in_order"] = True
        begin = partial(_begin_worker, self._parts.start, loader.worker_init_fn)
        attributes["worker_init_fn"] = begin
        return own

    def _shares(self, batches: Iterator[Any], draws: bool) -> Iterator[Any]:
        """Yield this rank's parts of an epoch's batches of indices.

        Over several ranks, all are drawn first, while the ranks have the same random numbers. If
        they draw different batches, the user's sampler has cut them already. A single process does
        so only if the sampler ``draws`` from the generators of the process, as the step does.
        Otherwise, a sampler is asked when a batch is needed: it may depend on what was learned.
        Batches are copied, as the sampler may reuse them.
        """

        def copied(indices: Any) -> Any:
            if isinstance(indices, Tensor):
                return indices.clone()
            return copy(indices) if isinstance(indices, CUT) else indices

        batches = map(copied, islice(batches, self.num_batches + self._asks_end))
        batches, self._draws_ahead = ask_first(batches, self._num_parts > 1 or draws)
        if not self._draws_ahead:
            yield from batches
            return
        drawn = [*islice(batches, self.num_batches)]
        are_batches = self._sampled == "batch_sampler"
        if are_batches:
            drawn = [own if isinstance(own, SLICED) else list(own) for own in drawn]
        if self._cuts is None and self._num_parts > 1:
            can_cut = are_batches or all(isinstance(own, CUT) for own in drawn)
            plain_batches = [own.tolist() if isinstance(own, ARRAYS) else own for own in drawn]
            self._cuts = self._num_different(repr(plain_batches).encode()) == 1 and can_cut
        _seed_rank(self._parts.start)
        if not self._cuts:
            yield from drawn
            return
        self._drawn = drawn
        for own in drawn:
            for part in self._parts:
                # Beyond the end is a filler, whose gradients have the weight 0.
                place = part if part < len(own) else part % max(1, len(own))
                stop = None if part < len(own) else place + 1
                yield own[place : stop : self._num_parts]

    def _num_different(self, content: bytes) -> int:
        digest = torch.frombuffer(bytearray(sha256(content).digest()), dtype=torch.uint8)
        return len({bytes(own.tolist()) for own in self.context.gather(digest)})

    @property
    def gives_ranks_their_own(self) -> bool:
        """Whether each rank brings batches of its own, whose sizes no other rank knows."""
        return not self._cuts and self._num_ranks > 1

    def _check_shards(self, order: Order) -> None:
        """Check that ranks have different batches, and as many. C237 if not, C174 if virtual."""
        if order.virtual_ranks is not None:
            what = "they cut every batch, and batches without a sampler come whole"
            fix = "give torch's DataLoader over a Dataset with __getitem__, or choose parallel=ddp"
            raise ConfigError(174, f"parallel.virtual_ranks, {self._place}", what, fix)
        content = b""
        for name, value in self._head[0].batch.items():
            if name == "index":  # differs over the ranks, whatever they get
                continue
            content += name.encode()
            for tensor in leaves(value):
                if tensor.layout == torch.strided:
                    flat = tensor.detach().cpu().contiguous().flatten()
                    content += flat.view(torch.uint8).numpy().tobytes()
            if isinstance(value, list) and value and isinstance(value[0], str | int | float):
                content += repr(value).encode()
        if self._num_different(content) < order.world_size:
            what = "gives several ranks the same batches"
            fix = "let each rank yield records of its own, by RANK and WORLD_SIZE in os.environ, "
            fix += "or give torch's DataLoader over a Dataset with __getitem__"
            raise ConfigError(237, self._place, what, fix)
        numbers = torch.cat(self.context.gather(torch.tensor([self.num_batches]))).tolist()
        if len({*numbers}) > 1:
            what = f"gives the ranks {', '.join(map(str, numbers))} batches"
            fix = f"let each yield as many, or in training set data.num_batches={min(numbers)}"
            raise ConfigError(237, self._place, what, fix)

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.context.training:
            return () if self._labels is None else (self._labels.note,)
        note = f"{self._where}: {self.title} decides order, workers and random changes"
        if self._draws_ahead:
            note += ", an epoch's batches of indices are drawn at its beginning"
        if self._cuts:
            note += ", and each rank takes its share of every batch"
        elif self._num_parts > 1:
            note += ", and the ranks' batches differ, so they are taken for shards"
        note += "; resume reads the epoch's earlier batches again and drops them, which is exact"
        return (f"{note} only if they repeat. data=dataset promises all of it",)

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        num_own = len(self._parts)
        num_parts = self._num_parts if self._cuts else 1
        head, ahead = self._head, self._ahead
        self._head, self._ahead = [], None
        if ahead is not None and epoch:
            ahead.close()
        if ahead is None or epoch:  # epoch 0 continues what ``sample`` has begun
            head, ahead = [], self._passes(epoch)
        with closing(ahead):
            for step in range(self.order.num_steps):
                count = self.order.accumulate * num_own
                passes, head = head[:count], head[count:]
                passes += islice(ahead, count - len(passes))
                # A pass weighs what it holds, so the step's last batch must be there.
                num_records = sum(size for _, _, size in passes) // num_own
                if step < start:
                    continue
                for number, (batch, own, _) in enumerate(passes, 1):
                    weight = own * num_parts / max(1, num_records)
                    batch = batch if self._labels is None else self._labels(batch)  # noqa: PLW2901
                    yield MicroBatch(batch, weight, number == len(passes))

    def _passes(self, epoch: int) -> Generator[_Pass]:
        num_own = len(self._parts)
        most = self.num_batches * num_own
        position = 0  # the records of the batches before
        with closing(self._iterated(self.loader, epoch)) as batches:
            for number in range(most):
                values = next(batches, END)
                if values is END:
                    number //= num_own  # noqa: PLW2901
                    if not number:
                        raise DataError(109, self._place, "has no batches", "give it at least one")
                    what = f"ended after {number} of {self.num_batches} batches"
                    fix = f"correct it, or set data.num_batches={number}"
                    raise DataError(234, self._place, what, fix)
                name = f"batch {number // num_own} of {self.title}"
                batch = user_data.record_of(values, self.names, name)
                own = size = length = _size(batch, name)
                first, stride = position * self._num_ranks + self._rank, self._num_ranks
                if self._cuts:
                    part, stride = self._parts[number % num_own], self._num_parts
                    size = len(self._drawn[number // num_own])
                    own = len(range(part, size, stride))
                    first = position + part % max(1, size)
                if (number + 1) % num_own == 0:
                    position += size
                if number == most - 1 and self._asks_end:
                    next(batches, END)
                numbered = _numbered(batch, first + stride * torch.arange(length))
                self._counts_records = numbered is not batch
                yield _Pass(numbered, own, size)

    def key(self, index: int) -> str:
        """Return what the number of a record means, unless the records bring their own."""
        return f"place {index} of the epoch, from 0" if self._counts_records else ""

    def sample(self, count: int) -> Batch:
        """Return a copy of the first records. Batches whose shapes differ are not joined."""
        if self._ahead is None:
            self._ahead = self._passes(0)
        if not self._head:
            self._head += islice(self._ahead, 1)
        with kept_generators(user_data.HOST), closing(self._first_batches(self._ahead)) as batches:
            batch: Batch = next(batches, {})
            while batch and len(batch["index"]) < count:
                more: Batch = next(batches, {})
                joined: Batch = {}
                for name, value in batch.items():
                    other = more.get(name)
                    if isinstance(value, list) and isinstance(other, list):
                        joined[name] = [*value, *other]
                    if not isinstance(value, Tensor) or not isinstance(other, Tensor):
                        continue
                    if value.dim() and value.shape[1:] == other.shape[1:]:
                        joined[name] = torch.cat([value, other])
                if not joined.keys() == batch.keys() == more.keys():
                    break
                batch = joined
        if not batch:
            raise DataError(109, self._place, "has no batches", "give it at least one")
        if len(batch["index"]) > count:
            batch = taken(batch, torch.arange(count))
        copied: Batch = mapped(batch, torch.clone)
        return copied if self._labels is None else self._labels(copied)

    def renumber(self, labels: LabelMap) -> None:
        self._labels = labels
        self.manifest = labels.manifest(self.manifest)

    def _first_batches(self, ahead: Generator[_Pass]) -> Generator[Batch]:
        """Yield the first batches of epoch 0, and keep what ``ahead`` gives of them.

        Those that ranks cut are read again, as a whole, so that all ranks get the same ones.
        """
        if not self._cuts:
            yield from (own.batch for own in self._head)
            for own in ahead:
                self._head.append(own)
                yield own.batch
            return
        whole: Any = copy(self.loader)
        vars(whole).update({self._sampled: self._drawn, "_iterator": None, "generator": None})
        vars(whole).update(num_workers=min(1, whole.num_workers), persistent_workers=False)
        position = 0
        with closing(self._iterated(whole, 0)) as batches:
            for values in batches:
                name = f"a batch of {self.title}"
                batch = user_data.record_of(values, self.names, name)
                size = _size(batch, name)
                yield _numbered(batch, position + torch.arange(size))
                position += size

    def close(self) -> None:
        """End worker processes that the loader keeps."""
        if self._ahead is not None:
            self._ahead.close()
        loader: Any = self.loader
        if isinstance(self.loader, DataLoader) and loader._iterator is not None:  # noqa: SLF001
            # torch offers no public way to end its workers before garbage collection.
            loader._iterator._shutdown_workers()  # noqa: SLF001
            loader._iterator = None  # noqa: SLF001

    def _iterated(self, loader: Iterable[Any], epoch: int) -> Generator[Any]:
        try:
            for part in self._knows_epoch:
                part.set_epoch(epoch)
            with kept_generators(user_data.HOST):
                # The same on all ranks, whose samplers must draw the same batches.
                seed_host_generators(int(record_seeds(torch.tensor([0]), self.context.seed, epoch)))
                # Processes that start here ignore Ctrl-C: the parent decides when to stop.
                with blocked({signal.SIGINT}):
                    batches = iter(loader)
                first = next(batches, END)
            if first is END:
                return
            yield first
            yield from batches
        except PacelineError:
            raise
        except (Exception, SystemExit) as error:
            fix = f"correct it, or {self._place}"
            fault = user_error(error, about=self._place, fix=fix)
            if fault is None and "DataLoader worker" in (text := str(error)):
                # It holds the traceback in the worker, which may name a line of the user's code.
                for file, line, function in reversed(FRAME.findall(text)):
                    if is_users(file):
                        what = f"in {function}: {text.strip().splitlines()[-1]}"
                        fault = UserCodeError(100, f"{short_path(file)}:{line}", what, fix)
                        break
            raise fault or DataError(233, self._place, plain(error), fix) from error


def _refuse_ignored(context: SourceContext, order: Order) -> None:
    user_data.refuse_transform(context)
    ignored = {
        "workers.num": context.num_workers or None,
        "workers.kind": context.worker_kind,
        "workers.start_method": context.start_method,
        "collate": None if context.collate == "pad" else context.collate,
        "limit": order.limit,
        "select": context.select,
        "fold": context.fold,
        "val_batch_size": context.val_batch_size,
        "order": context.order_choice and type(context.order_choice).__name__,
        "order.block_records": order.block,
        "last": None if order.last == "short" else order.last,
    }
    for key, value in ignored.items():
        if value is not None:
            what = "a DataLoader's batches come as they are"
            fix = "set it in the DataLoader, or choose data=dataset"
            raise ConfigError(174, f"{key} = {value}, data = dataloader", what, fix)


@final
@dataclass(eq=False)
class _Sampler:
    """The sampler of one rank's DataLoader, which asks ``_shares`` for an epoch's batches."""

    user_sampler: Iterable[Any]
    _length: int
    _shares: Callable[[Iterator[Any], bool], Iterator[Any]]

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        mark = generator_mark()
        batches = iter(self.user_sampler)  # some samplers draw here
        return self._shares(batches, mark != generator_mark())

    def __getattr__(self, name: str) -> Any:  # a DataLoader of the user's own class may ask for it
        return getattr(self.user_sampler, name)


def _seed_rank(rank: int) -> None:
    """Give a rank random numbers of its own. Rank 0 keeps those of a single process."""
    if rank:
        seed_host_generators(int(record_seeds(torch.tensor([rank]), torch.initial_seed(), 0)))


def _begin_worker(rank: int, begin: Callable[[int], Any] | None, number: int) -> None:
    _seed_rank(rank)
    if begin is not None:
        begin(number)


def _numbered(batch: Batch, numbers: Tensor) -> Batch:
    index = batch.get("index")
    wanted = torch.int64, numbers.shape
    if isinstance(index, Tensor) and (index.dtype, index.shape) == wanted:
        return batch
    return {**batch, "index": numbers}


def _size(batch: Batch, where: str) -> int:
    values = [value for value in batch.values() if isinstance(value, Tensor) and value.dim()]
    values += [value for value in batch.values() if isinstance(value, list)]
    if not values:
        fix = "return a tensor or a list of one value per record"
        raise DataError(235, where, "has no number of records", fix)
    return len(values[0])
