"""The same parts in a script or notebook, without configuration files.

Run it with ``python examples/from_python.py``.
"""

from functools import partial

import torch

import paceline as pace

cpu = torch.device("cpu")
normalize = pace.Normalize("image", mean=[0.5], std=[0.5])
clocks = {"train": pace.HostClock(), "val": pace.HostClock()}


def loader(split: str) -> pace.PrefetchLoader:
    """Pack one split of scikit-learn's digits, and return a loader of it."""
    path = f"digits-{split}.lmdb"
    pace.pack_store(pace.Packing(pace.DigitsInput(split), pace.LMDBWriter, path))
    order = partial(pace.Order, batch_size=128, shuffle=split == "train")
    source = pace.lmdb_source(path, context=pace.SourceContext(order, pace.NoTransform()))
    context = pace.LoaderContext(source, cpu, lambda b, _: normalize(b, None), clocks[split])
    return pace.PrefetchLoader(2, pin_memory=False, context=context)


torch.manual_seed(0)
model = pace.DigitsCNN(in_channels=1, num_classes=10, width=32)
trainer = pace.Trainer(
    pace.Parts(
        plan=pace.TrainPlan(epochs=6),
        model=model,
        objective=pace.Classify("image", "label", label_smoothing=0.0),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True),
        schedule=pace.OneCycle(peak=0.3, start=0.1),
        train=loader("train"),
        val=loader("val"),
        parallel=pace.NoParallel(device=cpu),
        precision=pace.FP32(tf32=True, device=cpu),
        clock=clocks["train"],
        val_clock=clocks["val"],
    )
)
for means in trainer.epochs():  # to stop early, stop iterating
    print({name: round(value, 4) for name, value in means.items()})
print({name: f"{seconds:.2f} s" for name, seconds in trainer.spans_s.items()})
