"""What the user's own parts hand over.

Values that are no tensors are carried along. Sums that cannot be added up are refused.
"""

import json
from pathlib import Path

import pytest

from tests.cli.command import paceline
from tests.faults.forked import is_one_line

MINE = """
import torch
from framework.contracts.data import MicroBatch
from framework.contracts.training import Outcome
from framework.data.synthetic import SyntheticSource
from framework.objective.classify import Classify

def named(batch):
    names = [f"record {index}" for index in batch["index"].tolist()]
    return {**batch, "name": names, "origin": "a camera", \
"boxes": [[1] * (index % 3) for index in batch["index"].tolist()]}

class Source:
    def __init__(self, path, image_shape, num_classes, num_records, context):
        self.source = SyntheticSource(path, image_shape, num_classes, 300, context=context)
    def __getattr__(self, name): return getattr(self.source, name)
    def batches(self, epoch, start=0):
        for batch, weight, last in self.source.batches(epoch, start):
            yield MicroBatch(named(batch), weight, last)
    def sample(self, count): return named(self.source.sample(count))

class Objective(Classify):
    def __init__(self, sums="fine"):
        super().__init__("image", "label", 0.0)
        self.sums = sums
    def __call__(self, model, batch):
        if "name" in batch:
            assert batch["name"] == [f"record {index}" for index in batch["index"].tolist()]
            assert batch["origin"] == "a camera" and len(batch["boxes"]) == len(batch["name"])
        outcome = super().__call__(model, batch)
        if self.sums == "confusion": outcome.sums["confusion"] = torch.ones(7, 7)
        if self.sums == "text": outcome.sums["text"] = "0.5"
        if self.sums == "changing" and model.training: outcome.sums["late"] = outcome.loss.detach()
        if self.sums == "float": outcome.sums["records"] = float(len(batch["label"]))
        if self.sums == "loss": outcome.loss = outcome.loss.repeat(2)
        if self.sums == "tuple": return outcome.loss, outcome.sums
        return outcome
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
OWN = ["~objective", "+objective._target_=mine.Objective"]
NAMED = ["data.source._target_=mine.Source", *OWN]


@pytest.fixture(autouse=True)
def mine():
    Path("mine.py").write_text(MINE)


def train(*words):
    return paceline("train", *SMALL, "hydra.run.dir=run", *words)


def losses():
    return [json.loads(line)["loss"] for line in Path("run/metrics.jsonl").read_text().splitlines()]


WAYS = {
    "plain": ["loader=plain"],
    "prefetch": ["loader=prefetch"],
    "stream": ["loader=stream"],
    "amp": ["precision=amp", "precision.dtype=bf16"],
    "val": ["data.val=val", "validate_every=2"],
    "accumulate": ["accumulate=2"],
    "ranks": ["parallel=ddp", "parallel.num_processes=2"],
    "virtual": ["parallel=virtual", "parallel.num_processes=1", "parallel.virtual_ranks=2"],
    "composed": ["augment=compose", "+augment@augment.parts.pixels=normalize"],
}


SLOW = {way: [pytest.mark.slow] for way in ("ranks", "virtual")}


@pytest.mark.parametrize("way", [pytest.param(way, marks=SLOW.get(way, [])) for way in WAYS])
def test_strings_and_lists_of_a_batch_reach_the_objective_unchanged(way):
    done = train(*NAMED, *WAYS[way])
    assert done.code == 0, done.err
    assert len(losses()) >= 3


def test_what_is_carried_along_does_not_change_what_is_learned():
    assert train(*NAMED).code == 0
    with_names = losses()
    assert (
        paceline("train", *SMALL, "data.source.num_records=300", *OWN, "hydra.run.dir=run2").code
        == 0
    )
    Path("run").rename("named")
    Path("run2").rename("run")
    assert losses() == with_names


@pytest.mark.slow
def test_steps_on_named_records_can_be_measured():
    done = paceline(
        "bench", *SMALL, *NAMED, "what=compute", "seconds=0.2", "burn_in=0", "repeats=1"
    )
    assert done.code == 0, done.out + done.err


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        ("text", ("Outcome.sums['text']: is a str",)),
        ("loss", ("Outcome.loss: has the shape [2]",)),
        ("tuple", ("the objective's result: a tuple, not an Outcome",)),
    ],
)
def test_what_cannot_be_added_up_is_refused_before_the_first_step(sums, words):
    assert is_one_line(train(*OWN, f"+objective.sums={sums}"), "C220", 2, *words)
    assert not Path("run/checkpoints").exists()


def test_a_matrix_in_the_sums_stays_one():
    assert train(*OWN, "+objective.sums=confusion").code == 0
    matrix = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[0])["arrays"][
        "confusion"
    ]
    assert len(matrix) == len(matrix[0]) == 7


def test_a_number_in_the_sums_is_a_sum():
    assert train(*OWN, "+objective.sums=float").code == 0
    assert json.loads(Path("run/metrics.jsonl").read_text().splitlines()[0])["records"] == 1.0
