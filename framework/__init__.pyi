# The Python API, for type checkers and for ``framework/__init__.py``, which imports a name from
# here when it is first used.
from framework.augment.compose import Compose as Compose
from framework.augment.crop_flip import CropFlip as CropFlip
from framework.augment.none import NoAugment as NoAugment
from framework.augment.normalize import Normalize as Normalize
from framework.config.saved_run import SavedRun as SavedRun
from framework.config.saved_run import load as load
from framework.config.training_parts import make_trainer as make_trainer
from framework.contracts.batch import Batch as Batch
from framework.contracts.data import SourceContext as SourceContext
from framework.contracts.loader import LoaderContext as LoaderContext
from framework.contracts.records import Chunk as Chunk
from framework.contracts.records import Field as Field
from framework.contracts.records import Manifest as Manifest
from framework.contracts.span import Span as Span
from framework.contracts.training import Moment as Moment
from framework.contracts.training import Outcome as Outcome
from framework.contracts.training import Report as Report
from framework.contracts.training import Watcher as Watcher
from framework.data.dataloader import loader_source as loader_source
from framework.data.dataset import dataset_source as dataset_source
from framework.data.folder import folder_source as folder_source
from framework.data.hdf5 import hdf5_source as hdf5_source
from framework.data.lmdb import lmdb_source as lmdb_source
from framework.errors import PacelineError as PacelineError
from framework.input.arrays import ArraysInput as ArraysInput
from framework.input.digits_input import DigitsInput as DigitsInput
from framework.input.folder import FolderInput as FolderInput
from framework.loader.plain import PlainLoader as PlainLoader
from framework.loader.prefetch import PrefetchLoader as PrefetchLoader
from framework.loader.stream import StreamLoader as StreamLoader
from framework.measure.clock import HostClock as HostClock
from framework.measure.clock import NoClock as NoClock
from framework.measure.clock import make_clock as make_clock
from framework.model.digits_net import DigitsCNN as DigitsCNN
from framework.objective.classify import Classify as Classify
from framework.objective.regress import Regress as Regress
from framework.objective.restore import Restore as Restore
from framework.order.batches import Order as Order
from framework.pack.pack_store import pack
from framework.pack.packing import Packing as Packing
from framework.pack.packing import SplitRule as SplitRule
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
from framework.train.noise import record_noise as record_noise
from framework.train.parts import Parts as Parts
from framework.train.trainer import Trainer as Trainer
from framework.train.watching import EarlyStop as EarlyStop
from framework.train.watching import Goal as Goal
from framework.train.watching import TimeBudget as TimeBudget
from framework.transform.center_crop import CenterCrop as CenterCrop
from framework.transform.none import NoTransform as NoTransform
from framework.transform.random_crop import RandomCrop as RandomCrop
from framework.transform.random_resized_crop import RandomResizedCrop as RandomResizedCrop
from framework.transform.resize import Resize as Resize

__version__: str

pack_store = pack  # the folder framework/pack has the name of the function
