"""What is known of a slow run: the machine, the store, what was chosen, and how fast each part is. All that a rule may look at."""

from dataclasses import dataclass

DATA_GAIN = 1.03  # headroom below which data is not the problem: the least difference that measuring calls one
LEAST_TWO = (
    1.3  # times as much as one: with less, the cores are too busy for two threads to tell anything
)
BUSY = 0.5  # of the cores wanted by other programs
LEAST_LEFT = 0.01  # of a step, after all that data takes


@dataclass(frozen=True)
class Machine:
    """``memory_bytes``: what is free or can be freed. ``gpu``: its name. ``bf16``: whether products of bfloat16 are done in hardware.
    ``load``: cores that programs wanted in the minute before.
    """

    num_cores: int
    memory_bytes: int
    gpu: str | None = None
    bf16: bool = False
    load: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether other programs take so much that figures are rough."""
        return self.load > BUSY * self.num_cores


@dataclass(frozen=True)
class Storage:
    """The store that is trained on.

    ``form``: folder, hdf5, lmdb, or other (a store of the user's own). ``encoding``: image where a field holds image files, else raw.
    ``image_size``: (height, width) of the median image of a sample, ``even``: whether all of the sample have it; None: no images.
    ``cached``: share of the bytes in the page cache. ``chunk_records``: records per compressed chunk. ``target``: a free path beside it,
    without an ending, for a store packed from it; ``val``: the same for the validation set, and its own path.
    """

    path: str
    form: str
    num_records: int
    record_bytes: float
    encoding: str
    disk: str
    cached: float | None
    image_size: tuple[int, int] | None = None
    channels: int = 3
    even: bool = False
    chunk_records: int | None = None
    target: str = ""
    val: str | None = None
    val_target: str = ""

    @property
    def num_bytes(self) -> float:
        """Of all records."""
        return self.num_records * self.record_bytes


@dataclass(frozen=True)
class Settings:
    """What was chosen, as far as rules care. ``workers``: as resolved, never null. ``transform``, ``augment``, ``loader``, ``precision``: names of
    modules. ``size``: of the transform's results. ``has_function``: it calls a function of Python's for each record. ``block``: of the order.
    """

    batch_size: int
    workers: int
    kind: str
    loader: str
    precision: str
    transform: str = "none"
    size: tuple[int, int] | None = None
    has_function: bool = False
    augment: str = "normalize"
    shuffle: bool = True
    block: int | None = None
    staged: bool = False
    compiled: bool = False


@dataclass(frozen=True)
class Rates:
    """Records per second of each part alone and of all together; None: not measured, because this choice has no such part.

    ``read``: store.read in this thread; ``read_cores``: CPU seconds per second of it (near 1: it computes, near 0: it waits for the disk).
    ``prepare``: read, decode and transform in this thread; ``prepare_two``: by two threads; ``two_cores``: how many times as much two
    threads do as one where nothing holds Python's lock, on these cores as busy as they are; ``prepare_plain``: without the transform's function. ``loader``: workers and loader, nothing else running. ``copy``: host to device. ``compute``: one batch for ever;
    ``compute_cores``: cores it keeps busy; ``half``: the same with half the batch. ``whole``: training; ``wait``: share of it waited.
    """

    compute: float
    whole: float
    loader: float
    compute_cores: float = 1.0
    half: float | None = None
    read: float | None = None
    read_cores: float = 1.0
    prepare: float | None = None
    prepare_two: float | None = None
    two_cores: float = 2.0
    prepare_plain: float | None = None
    copy: float | None = None
    wait: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True)
class DiagnosisFacts:
    """``convolutional``: the model holds 2-d convolutions, laid out in planes."""

    machine: Machine
    settings: Settings
    rates: Rates
    storage: Storage | None = None
    convolutional: bool = False

    @property
    def headroom(self) -> float:
        """The factor on the whole rate if data cost nothing: what computing alone does, but no more than what waiting and preparing take
        of a step could bring, whatever the machine was busy with while the two were measured.
        """
        rates = self.rates
        found = rates.compute / rates.whole
        if rates.prepare is not None:
            taken = rates.wait + rates.whole / rates.prepare
            found = min(found, 1 / max(LEAST_LEFT, 1 - taken))
        return max(1.0, found)

    @property
    def data_limits(self) -> bool:
        return self.headroom > DATA_GAIN

    @property
    def cuda(self) -> bool:
        return self.machine.gpu is not None

    @property
    def function_share(self) -> float:
        """How much of preparing a record the transform's function takes."""
        rates = self.rates
        if rates.prepare is None or rates.prepare_plain is None:
            return 0.0
        return max(0.0, 1 - rates.prepare / rates.prepare_plain)

    @property
    def lock_share(self) -> float:
        """How much of preparing a record holds Python's lock: 0: two threads do twice as much as one; 1: no more than one."""
        rates = self.rates
        if rates.prepare is None or rates.prepare_two is None or rates.two_cores < LEAST_TWO:
            return 0.0
        return min(
            1.0, max(0.0, 1 - (rates.prepare_two / rates.prepare - 1) / (rates.two_cores - 1))
        )
