"""Paceline trains PyTorch models without waiting for data, and shows where the time of each step
goes.

The names below are the Python API. Each is imported when it is first used, so that
``import framework`` costs nothing:

    import framework

    store = framework.open_store("train.h5")
    print(store.manifest.num_records)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # what type checkers and editors see of _HOMES
    from framework.augment.compose import Compose as Compose
    from framework.augment.crop_flip import CropFlip as CropFlip
    from framework.augment.none import NoAugment as NoAugment
    from framework.augment.normalize import Normalize as Normalize
    from framework.contracts.batch import Batch as Batch
    from framework.contracts.data import SourceContext as SourceContext
    from framework.contracts.loader import LoaderContext as LoaderContext
    from framework.contracts.records import Chunk as Chunk
    from framework.contracts.records import Field as Field
    from framework.contracts.records import Manifest as Manifest
    from framework.contracts.span import Span as Span
    from framework.contracts.training import Outcome as Outcome
    from framework.contracts.training import Report as Report
    from framework.data.folder import folder_source as folder_source
    from framework.data.hdf5 import hdf5_source as hdf5_source
    from framework.data.lmdb import lmdb_source as lmdb_source
    from framework.errors import PacelineError as PacelineError
    from framework.input.arrays import ArraysInput as ArraysInput
    from framework.input.folder import FolderInput as FolderInput
    from framework.loader.plain import PlainLoader as PlainLoader
    from framework.loader.prefetch import PrefetchLoader as PrefetchLoader
    from framework.loader.stream import StreamLoader as StreamLoader
    from framework.measure.clock import HostClock as HostClock
    from framework.measure.clock import NoClock as NoClock
    from framework.measure.clock import make_clock as make_clock
    from framework.objective.classify import Classify as Classify
    from framework.objective.regress import Regress as Regress
    from framework.objective.restore import Restore as Restore
    from framework.order import Order as Order
    from framework.pack.engine.pack_store import pack
    from framework.pack.engine.packing import Packing as Packing
    from framework.parallel.none import NoParallel as NoParallel
    from framework.precision.amp import AMP as AMP
    from framework.precision.fp32 import FP32 as FP32
    from framework.schedule.constant import Constant as Constant
    from framework.schedule.cosine import Cosine as Cosine
    from framework.schedule.one_cycle import OneCycle as OneCycle
    from framework.store.hdf5_store import HDF5Writer as HDF5Writer
    from framework.store.lmdb_store import LMDBWriter as LMDBWriter
    from framework.store.open_store import open_store as open_store
    from framework.train.metrics import TrainPlan as TrainPlan
    from framework.train.parts import Parts as Parts
    from framework.train.trainer import Trainer as Trainer
    from framework.transform.center_crop import CenterCrop as CenterCrop
    from framework.transform.none import NoTransform as NoTransform
    from framework.transform.random_crop import RandomCrop as RandomCrop
    from framework.transform.random_resized_crop import RandomResizedCrop as RandomResizedCrop
    from framework.transform.resize import Resize as Resize

    pack_store = pack

_HOMES = {
    "Compose": "framework.augment.compose",
    "CropFlip": "framework.augment.crop_flip",
    "NoAugment": "framework.augment.none",
    "Normalize": "framework.augment.normalize",
    "Batch": "framework.contracts.batch",
    "SourceContext": "framework.contracts.data",
    "LoaderContext": "framework.contracts.loader",
    "Chunk": "framework.contracts.records",
    "Field": "framework.contracts.records",
    "Manifest": "framework.contracts.records",
    "Span": "framework.contracts.span",
    "Outcome": "framework.contracts.training",
    "Report": "framework.contracts.training",
    "folder_source": "framework.data.folder",
    "hdf5_source": "framework.data.hdf5",
    "lmdb_source": "framework.data.lmdb",
    "PacelineError": "framework.errors",
    "ArraysInput": "framework.input.arrays",
    "FolderInput": "framework.input.folder",
    "PlainLoader": "framework.loader.plain",
    "PrefetchLoader": "framework.loader.prefetch",
    "StreamLoader": "framework.loader.stream",
    "HostClock": "framework.measure.clock",
    "NoClock": "framework.measure.clock",
    "make_clock": "framework.measure.clock",
    "Classify": "framework.objective.classify",
    "Regress": "framework.objective.regress",
    "Restore": "framework.objective.restore",
    "Order": "framework.order",
    "pack_store": "framework.pack.engine.pack_store",
    "Packing": "framework.pack.engine.packing",
    "NoParallel": "framework.parallel.none",
    "AMP": "framework.precision.amp",
    "FP32": "framework.precision.fp32",
    "Constant": "framework.schedule.constant",
    "Cosine": "framework.schedule.cosine",
    "OneCycle": "framework.schedule.one_cycle",
    "HDF5Writer": "framework.store.hdf5_store",
    "LMDBWriter": "framework.store.lmdb_store",
    "open_store": "framework.store.open_store",
    "TrainPlan": "framework.train.metrics",
    "Parts": "framework.train.parts",
    "Trainer": "framework.train.trainer",
    "CenterCrop": "framework.transform.center_crop",
    "NoTransform": "framework.transform.none",
    "RandomCrop": "framework.transform.random_crop",
    "RandomResizedCrop": "framework.transform.random_resized_crop",
    "Resize": "framework.transform.resize",
}
# the folder framework/pack has the name that the function has in its own module
_NAMES = {"pack_store": "pack"}


def __getattr__(name: str) -> Any:
    """Import a name of the API when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'framework' has no attribute '{name}'")
    value = getattr(import_module(_HOMES[name]), _NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
