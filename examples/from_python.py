"""The same parts, assembled in a script or notebook, without Hydra: python examples/from_python.py"""

from functools import partial

import torch
from paceline_examples.digits_input import DigitsInput
from paceline_examples.digits_net import DigitsCNN

from framework.augment.normalize import Normalize
from framework.contracts.data import SourceContext
from framework.contracts.loader import LoaderContext
from framework.data.lmdb import lmdb_source
from framework.loader.prefetch import PrefetchLoader
from framework.measure.clock import HostClock
from framework.objective.classify import Classify
from framework.order import Order
from framework.pack.engine.pack_store import pack
from framework.pack.engine.packing import Packing
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.schedule.one_cycle import OneCycle
from framework.store.lmdb_store import LMDBWriter
from framework.train.metrics import TrainPlan
from framework.train.parts import Parts
from framework.train.trainer import Trainer
from framework.transform.none import NoTransform

cpu, normalize, clocks = (
    torch.device("cpu"),
    Normalize("image", [0.5], [0.5]),
    {"train": HostClock(), "val": HostClock()},
)


def loader(split: str) -> PrefetchLoader:
    """Pack a split of scikit-learn's digits, and load it."""
    path = f"digits-{split}.lmdb"
    pack(Packing(DigitsInput(split), LMDBWriter, path))
    source = lmdb_source(
        path,
        context=SourceContext(
            partial(Order, batch_size=128, shuffle=split == "train"), NoTransform()
        ),
    )
    return PrefetchLoader(
        2,
        pin_memory=False,
        context=LoaderContext(source, cpu, lambda b, _: normalize(b, None), clocks[split]),
    )


torch.manual_seed(0)
model = DigitsCNN(in_channels=1, num_classes=10, width=32)
trainer = Trainer(
    Parts(
        plan=TrainPlan(epochs=6),
        model=model,
        objective=Classify("image", "label", label_smoothing=0.0),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True),
        schedule=OneCycle(peak=0.3, start=0.1),
        train=loader("train"),
        val=loader("val"),
        parallel=NoParallel(device=cpu),
        precision=FP32(tf32=True, device=cpu),
        clock=clocks["train"],
        val_clock=clocks["val"],
    )
)
for means in trainer.epochs():  # to stop early, stop iterating
    print({name: round(value, 4) for name, value in means.items()})
print({name: f"{seconds:.2f} s" for name, seconds in trainer.spans_s.items()})
