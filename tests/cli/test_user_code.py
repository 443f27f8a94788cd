"""The user's own parts: their exceptions become one line, and their values are carried along."""

import json
from pathlib import Path

import pytest

from tests.cli.command import losses, paceline
from tests.contract.cases import make_records, write_store
from tests.faults.forked import is_one_line

MINE = """
import os
import torch
from framework.contracts.data import MicroBatch
from framework.data.synthetic import SyntheticSource
from framework.objective.classify import Classify
from framework.model.digits_net import DigitsCNN

class Net(torch.nn.Module):
    def __init__(self, fails, in_channels=1, num_classes=10, width=4):
        super().__init__()
        self.fails, self.net, self.calls = fails, DigitsCNN(in_channels, num_classes, width), 0
        if fails == "init": raise KeyError("typo")  # LINE init
    def forward(self, x):
        self.calls += 1
        if self.fails == "trial": torch.zeros(2, 3) @ torch.zeros(2, 3)  # LINE trial
        if self.fails == "later" and self.calls == 3: raise StopIteration  # LINE later
        if self.fails == "exit" and self.training: raise SystemExit(3)  # LINE exit
        if self.fails == "rank" and self.training and os.environ["RANK"] == "1": \
raise RuntimeError("boom")  # LINE rank
        return self.net(x)

class Augment:
    num_draws = 1
    def __call__(self, batch, draws):
        if draws is not None: batch["picture"]  # LINE augment
        return batch

def named(batch):
    names = [f"record {index}" for index in batch["index"].tolist()]
    return {**batch, "name": names, "origin": "a camera", \
"boxes": [[1] * (index % 3) for index in batch["index"].tolist()]}

class Source:
    def __init__(self, path, image_shape, num_classes, num_records, context, fails=False):
        self.fails = fails
        self.source = SyntheticSource(path, image_shape, num_classes, 300, context=context)
    def __getattr__(self, name): return getattr(self.source, name)
    def sample(self, count): return named(self.source.sample(count))
    def batches(self, epoch, start=0):
        for batch, weight, last in self.source.batches(epoch, start):
            if self.fails: raise LookupError("no such file")  # LINE source
            yield MicroBatch(named(batch), weight, last)

class Objective(Classify):
    def __init__(self, sums="fine"):
        super().__init__("image", "label", 0.0)
        self.sums = sums
    def __call__(self, model, batch):
        if "name" in batch:
            assert batch["name"] == [f"record {index}" for index in batch["index"].tolist()]
            assert batch["origin"] == "a camera" and len(batch["boxes"]) == len(batch["name"])
        outcome = super().__call__(model, batch)
        if self.sums == "more":
            outcome.sums["confusion"] = torch.ones(7, 7)
            outcome.sums["records"] = float(len(batch["label"]))
        if self.sums == "text": outcome.sums["text"] = "0.5"
        if self.sums == "loss": outcome.loss = outcome.loss.repeat(2)
        if self.sums == "tuple": return outcome.loss, outcome.sums
        return outcome
    def better(self, new, old):
        key = "f1" if self.sums == "better" else "loss"
        return new[key] < old[key]  # LINE better

def blurred(images, rng):
    raise ValueError("too blurred")  # LINE transform

def records(item):
    if item == 0: raise ValueError("odd item")  # LINE records
    return {"x": item}
"""
SMALL = (
    *("data=synthetic", "data.val=null", "epochs=1", "max_steps=3", "report_every=1"),
    *("workers.num=0", "allow_targets=[mine]"),
)
OWN = ("~objective", "+objective._target_=mine.Objective")
VALIDATED = ("data.val=val", "validate_every=1")
NAMED = ("data.source._target_=mine.Source", *OWN)


@pytest.fixture(autouse=True)
def mine():
    Path("mine.py").write_text(MINE)


def train(*words):
    return paceline("train", *SMALL, "hydra.run.dir=run", *words)


def is_users(done, place, *words):
    """Check that a command ended with the line of ``MINE`` that is marked with ``place``."""
    marked = [line.endswith(f"# LINE {place}") for line in MINE.splitlines()]
    return is_one_line(done, "U100", 9, f"mine.py:{marked.index(True) + 1}: in ", *words)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("init", ("KeyError: 'typo'",)),
        ("trial", ("Net.forward: RuntimeError", "image (", "label ()")),
        ("later", ("StopIteration",)),
        ("exit", ("SystemExit: 3",)),
    ],
)
def test_a_model_that_fails_is_named_with_its_line(place, words):
    done = train("model._target_=mine.Net", f"+model.fails={place}")
    assert is_users(done, place, "in Net.", *words)
    assert json.loads(Path("run/exit.json").read_text())["code"] == 9
    assert "mine.py" in Path("run/debug.log").read_text()


@pytest.mark.parametrize(
    ("place", "words", "text"),
    [
        ("augment", ("~augment", "+augment._target_=mine.Augment"), "KeyError: 'picture'"),
        ("source", (*NAMED, "+data.source.fails=true"), "Source.batches: LookupError"),
        ("better", (*OWN, "+objective.sums=better", *VALIDATED), "Objective.better: KeyError"),
    ],
)
def test_another_part_that_fails_is_named_with_its_line(place, words, text):
    assert is_users(train(*words), place, text)


@pytest.mark.parametrize("workers", [("workers.num=2",), ("workers.num=1", "workers.kind=process")])
def test_a_transform_that_fails_is_named_with_its_line_and_the_record(workers):
    write_store("store.h5", make_records(8))
    words = ("data=hdf5", "data.train=store.h5", "transform=function", "model.in_channels=3")
    done = train(*words, "transform.function._target_=mine.blurred", *workers)
    assert is_users(done, "transform", "blurred: ValueError: too blurred", "store.h5: record ")


PACK = (
    *("pack", "input=function", "input.function=mine.records", "input.items=3"),
    *("output.path=x.h5", "allow_targets=[mine]", "workers=2"),
)


def test_a_function_that_makes_records_is_named_with_its_line_and_the_item():
    assert is_users(paceline(*PACK), "records", "records: ValueError: odd item", "(0)")


@pytest.mark.slow
def test_a_rank_that_fails_is_named_with_its_line():
    ranks = ("parallel=ddp", "parallel.num_processes=2")
    done = train("model._target_=mine.Net", "+model.fails=rank", *ranks)
    assert is_users(done, "rank", "Net.forward: RuntimeError: boom")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Net:\n    def forward(self\n", ("mine.py:2: SyntaxError",)),
        ("import not_installed\n", ("mine.py:1: in <module>: ModuleNotFoundError", "mine.Net")),
    ],
    ids=["syntax", "import"],
)
def test_a_module_that_cannot_be_loaded_is_named_with_its_line(text, words):
    Path("mine.py").write_text(text)
    assert is_one_line(train("model._target_=mine.Net"), "U100", 9, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("loader=stream", "accumulate=2", *VALIDATED),
        ("loader=plain", "precision=amp", "precision.dtype=bf16"),
        ("augment=compose", "+augment@augment.parts.pixels=normalize"),
        pytest.param(
            ("parallel=virtual", "parallel.num_processes=2", "parallel.virtual_ranks=2"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["stream", "mixed precision", "composed", "ranks"],
)
def test_strings_and_lists_of_a_batch_reach_the_objective_unchanged(words):
    done = train(*NAMED, *words)
    assert done.code == 0, done.err
    assert len(losses(Path("run"))) == 3


@pytest.mark.parametrize(
    ("sums", "text"),
    [
        ("text", "Outcome.sums['text']: is a str"),
        ("loss", "Outcome.loss: has the shape [2]"),
        ("tuple", "the objective's result: a tuple, not an Outcome"),
    ],
)
def test_what_cannot_be_added_up_is_refused_before_the_first_step(sums, text):
    assert is_one_line(train(*OWN, f"+objective.sums={sums}"), "C220", 2, text)
    assert not Path("run/checkpoints").exists()


def test_sums_may_be_numbers_and_matrices():
    assert train(*OWN, "+objective.sums=more").code == 0
    report = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[0])
    assert report["records"] == 1.0
    assert [len(row) for row in report["arrays"]["confusion"]] == [7] * 7
