"""An exception in the user's own code is one line that names the user's file and line.

It does not matter where the code is called from.
"""

import json
from pathlib import Path

import pytest

from tests.cli.command import paceline
from tests.contract.cases import make_records, write_store
from tests.faults.forked import is_one_line

MINE = """
import os
import numpy as np
import torch
from framework.contracts.training import Outcome
from framework.data.synthetic import SyntheticSource
from paceline_examples.digits_net import DigitsCNN
from framework.objective.classify import Classify

class Mute(Exception):
    def __str__(self): raise ValueError("no words")

class Net(torch.nn.Module):
    def __init__(self, fails, in_channels=1, num_classes=10, width=4):
        super().__init__()
        self.fails, self.net, self.calls = fails, DigitsCNN(in_channels, num_classes, width), 0
        if fails == "init": raise KeyError("typo")  # LINE init
    def forward(self, x):
        self.calls += 1
        if self.fails == "trial": torch.zeros(2, 3) @ torch.zeros(2, 3)  # LINE trial
        if self.fails == "train" and self.training: raise RuntimeError("boom\\nboom")  # LINE train
        if self.fails == "later" and self.calls == 3: raise StopIteration  # LINE later
        if self.fails == "mute" and self.training: raise Mute  # LINE mute
        if self.fails == "exit" and self.training: raise SystemExit(3)  # LINE exit
        if self.fails == "denied": raise PermissionError(13, "denied")  # LINE denied
        if self.fails == "rank" and self.training and os.environ["RANK"] == "1": \
raise RuntimeError("boom")  # LINE rank
        return self.net(x)

class Objective(Classify):
    def __init__(self): super().__init__("image", "label", 0.0)
    def better(self, new, old): return new["f1"] > old["f1"]  # LINE better

class Augment:
    num_draws = 1
    def __call__(self, batch, draws):
        if draws is not None: batch["picture"]  # LINE augment
        return batch

class Source:
    workers = ["not", "ours"]
    def __init__(self, path, image_shape, num_classes, num_records, fails, context):
        self.fails, self.source = \
fails, SyntheticSource(path, image_shape, num_classes, 300, context=context)
    def __getattr__(self, name): return getattr(self.source, name)
    def batches(self, epoch, start=0):
        for micro in self.source.batches(epoch, start):
            if self.fails: raise LookupError("no such file")  # LINE source
            yield micro

def blurred(images, rng):
    raise ValueError("too blurred")  # LINE transform

def records(item):
    raise ValueError("odd item")  # LINE records
"""
SMALL = [
    "data=synthetic",
    "data.val=null",
    "epochs=1",
    "max_steps=3",
    "report_every=1",
    "workers.num=0",
    "allow_targets=[mine]",
]


def line_of(place):
    return next(
        number
        for number, line in enumerate(MINE.splitlines(), 1)
        if line.endswith(f"# LINE {place}")
    )


@pytest.fixture(autouse=True)
def mine():
    Path("mine.py").write_text(MINE)


def is_users(done, place, *words):
    return (
        is_one_line(done, "U100", 9, f"mine.py:{line_of(place)}: in ", *words)
        and "please" not in done.err
    )


def train(*words):
    return paceline("train", *SMALL, "hydra.run.dir=run", *words)


NET = ("init", "trial", "train", "later", "mute", "exit", "denied")


@pytest.mark.parametrize("place", NET)
def test_a_model_that_fails_is_named_with_its_line(place):
    done = train("model._target_=mine.Net", f"+model.fails={place}")
    assert is_users(done, place, "in Net.")
    assert json.loads(Path("run/exit.json").read_text())["code"] == 9
    assert "mine.py" in Path("run/debug.log").read_text()


def test_the_traceback_is_shown_if_it_is_asked_for():
    done = train("model._target_=mine.Net", "+model.fails=train", "debug=trace")
    assert "Traceback" in done.err
    assert done.code == 9


def test_what_does_not_fit_names_the_data_too():
    assert is_users(
        train("model._target_=mine.Net", "+model.fails=trial"), "trial", "image (", "label ()"
    )


def test_an_augment_that_fails_is_named_with_its_line():
    assert is_users(
        train("~augment", "+augment._target_=mine.Augment"),
        "augment",
        "Augment.__call__: KeyError: 'picture'",
    )


@pytest.mark.parametrize("loader", ["plain", "prefetch", "stream"])
def test_a_source_that_fails_in_a_loader_s_thread_is_named_with_its_line(loader):
    done = train("data.source._target_=mine.Source", "+data.source.fails=true", f"loader={loader}")
    assert is_users(done, "source", "Source.batches: LookupError: no such file")


def test_an_objective_that_fails_in_validation_is_named_with_its_line():
    words = ["data.val=val", "~objective", "+objective._target_=mine.Objective", "validate_every=1"]
    assert is_users(train(*words), "better", "Objective.better: KeyError: 'f1'")


PACKED = [
    "data=hdf5",
    "data.train=store.h5",
    "transform=function",
    "transform.function._target_=mine.blurred",
]


@pytest.mark.parametrize(
    "workers", [["workers.num=0"], ["workers.num=2"], ["workers.num=1", "workers.kind=process"]]
)
def test_a_transform_s_function_that_fails_is_named_with_its_line_and_the_record(workers):
    write_store("store.h5", make_records(8))
    words = [
        "model.in_channels=3",
        "data.source._target_=framework.data.hdf5.hdf5_source",
        *workers,
    ]
    done = train(*PACKED, *words)
    assert is_users(done, "transform", "blurred: ValueError: too blurred", "store.h5: record ")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_makes_records_is_named_with_its_line_and_the_item(workers):
    words = [
        "input=function",
        "input.function=mine.records",
        "input.items=3",
        "output.path=x.h5",
        f"workers={workers}",
    ]
    done = paceline("pack", *words, "allow_targets=[mine]")
    assert is_users(done, "records", "records: ValueError: odd item", "(0)")


def test_items_for_which_the_function_fails_may_be_skipped():
    text = MINE.replace('raise ValueError("odd item")', 'return {"x": 1 // item}')
    Path("mine.py").write_text(text)
    words = [
        "input=function",
        "input.function=mine.records",
        "input.items=3",
        "output.path=x.h5",
        "pack.on_error=skip",
    ]
    done = paceline("pack", *words, "allow_targets=[mine]", "workers=0")
    assert done.code == 8
    assert '"U100"' in Path("x.h5.bad.jsonl").read_text()


@pytest.mark.slow
def test_a_rank_that_fails_is_named_with_its_line():
    done = train(
        "model._target_=mine.Net", "+model.fails=rank", "parallel=ddp", "parallel.num_processes=2"
    )
    assert is_users(done, "rank", "Net.forward: RuntimeError: boom")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Net:\n    def forward(self\n", ("mine.py:2: SyntaxError",)),
        ("import torch\nx = torch.oops\n", ("mine.py:2: in <module>: AttributeError",)),
        (
            "import not_installed\n",
            ("mine.py:1: in <module>: ModuleNotFoundError", "model._target_ = mine.Net"),
        ),
    ],
)
def test_a_module_that_cannot_be_loaded_is_named_with_its_line(text, words):
    Path("mine.py").write_text(text)
    assert is_one_line(train("model._target_=mine.Net"), "U100", 9, *words)


@pytest.mark.slow
def test_a_source_may_have_an_attribute_called_workers():
    words = [
        *SMALL,
        "data.source._target_=mine.Source",
        "+data.source.fails=false",
        "seconds=0.2",
        "burn_in=0",
        "repeats=2",
    ]
    done = paceline("bench", *words)
    assert done.code == 0, done.err
