"""A user's own Dataset and DataLoader train as they are: ``data=dataset``, ``data=dataloader``."""

import json
from pathlib import Path

import pytest

from tests.cli.command import is_one_error_line, losses, paceline, refusal_of

MINE = """
import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Clips(Dataset):
    classes = ["low", "high"]
    def __init__(self, count=40, draws=True):
        self.count, self.draws = count, draws
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        wave = torch.linspace(0, 1 + index % 2, 8)
        if self.draws:
            wave = wave + random.random() + np.random.rand() + torch.rand(8)
        return {"wave": wave, "label": index % 2, "text": f"clip {index}"}

class Pairs(Clips):
    classes = None
    def __getitem__(self, index):
        record = super().__getitem__(index)
        return record["wave"], record["label"]

class Broken(Clips):
    def __getitem__(self, index):
        if index == 5: raise LookupError("no such clip")
        return super().__getitem__(index)

class Dropout(torch.nn.Sequential):
    def __init__(self, num_classes=2):
        super().__init__(torch.nn.Dropout(0.5), torch.nn.Linear(8, num_classes))

class Nothing:
    pass

def collate(items, scale=1.0):
    return {"wave": scale * torch.stack([item["wave"] for item in items]),
            "label": torch.tensor([item["label"] for item in items])}

def make_loader(count=40, **options):
    return DataLoader(Pairs(count), batch_size=8, shuffle=True, **options)
"""
NET = (
    *("augment=none", "objective.input=wave", "model=null", "+model._target_=mine.Dropout"),
    *("schedule=constant", "epochs=2", "batch_size=8", "report_every=1"),
    "allow_targets=[mine]",
)
CLIPS = "data.train={_target_: mine.Clips, count: 40}"
LOADER = ("data=dataloader", "data.train={_target_: mine.make_loader}", "data.fields=[wave,label]")
PAIRS = ("data.train={_target_: mine.Pairs}", "data.fields=[wave,label]")


@pytest.fixture(autouse=True)
def mine():
    Path("mine.py").write_text(MINE)


def train(name, *words):
    return paceline("train", *NET, f"hydra.run.dir={name}", *words)


def resume(name, *words):
    return paceline("train", f"resume={name}", "allow_targets=[mine]", *words)


def losses_of(name, *words):
    done = train(name, *words)
    assert done.code == 0, done.err
    return losses(Path(name))


WAYS = {
    "plain": ("workers.num=0", "loader=plain"),
    "one process": ("workers.num=0",),
    "two workers": ("workers.num=2",),
    "spawned": ("workers.num=1", "workers.start_method=spawn"),
}


@pytest.mark.slow
def test_losses_do_not_depend_on_who_reads_random_items():
    every = [losses_of(name, "data=dataset", CLIPS, *way) for name, way in WAYS.items()]
    assert len(every[0]) == 10
    assert every == [every[0]] * len(WAYS)


def test_threads_are_refused_for_random_items():
    done = train("run", "data=dataset", CLIPS, "workers.num=2", "workers.kind=thread")
    assert is_one_error_line(done, "C230")


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns():
    words = ("data=dataset", CLIPS, "model._target_=torch.nn.Linear")
    words += ("+model.in_features=8", "+model.out_features=2", "workers.num=1")
    alone = losses_of("alone", *words)
    ranks = losses_of("ranks", *words, "parallel=ddp", "parallel.num_processes=2")
    assert ranks == pytest.approx(alone, rel=1e-5)


def test_a_resumed_run_learns_what_an_uninterrupted_run_learns():
    words = ("data=dataset", CLIPS, "data.val={_target_: mine.Clips, count: 9}")
    whole = losses_of("whole", *words)
    losses_of("part", *words, "max_steps=3", "workers.num=2")
    done = resume("part", "max_steps=10", "workers.num=0")
    assert done.code == 0, done.err
    assert losses(Path("part")) == whole


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("C103", ["data=dataset"]),
        ("C105", ["data=dataset", "data.train={_target_: os.system, command: ls}"]),
        ("C105", ["data=dataset", CLIPS, "data.collate=os.system"]),
        ("C106", ["data=dataset", "data.train={_target_: mine.Clips, length: 3}"]),
        ("C174", [*LOADER, "shuffle=true"]),
    ],
)
def test_data_that_cannot_be_called_is_refused(number, words):
    assert refusal_of(*NET, *words).startswith(f"error[{number}]: ")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("C105", ["data=dataset", CLIPS, "data.collate=mine.padded"]),
        ("C174", ["data=dataset", CLIPS, "transform=resize", "transform.size=[4,4]"]),
        ("C231", ["data=dataset", "data.train={_target_: mine.make_loader}"]),
        ("C232", ["data=dataset", CLIPS, "data.fields=wave"]),
        ("C174", [*LOADER, "batch_size=128"]),
        ("C234", ["data=dataloader", "data.train={_target_: mine.Nothing}"]),
        ("D230", ["data=dataset", "data.train={_target_: mine.Pairs}"]),
    ],
)
def test_objects_that_cannot_be_data_are_refused_before_the_first_step(number, words):
    done = train("run", *words)
    assert is_one_error_line(done, number), done.err
    assert not Path("run/metrics.jsonl").exists()


def test_classes_come_from_the_dataset_or_must_be_typed():
    words = ("data=dataset", "+model.num_classes=auto", "max_steps=1")
    done = train("run", *words, CLIPS)
    assert "from the data: model.num_classes=2" in done.err
    data = json.loads(Path("run/run.json").read_text())["data"]["train"]
    assert (data["source"], data["num_records"]) == ("dataset mine.Clips", 40)
    done = train("none", *words, *PAIRS)
    assert is_one_error_line(done, "C157")
    assert "type it: model.num_classes=10" in done.err


def test_a_ready_loader_trains_with_a_note_and_resumes():
    words = ("data=dataloader", "data.train={_target_: mine.make_loader, num_workers: 1}")
    words += ("data.fields=[wave,label]",)
    done = train("whole", *words)
    assert done.code == 0, done.err
    assert done.err.count("resume reads the epoch's earlier batches") == 1
    assert len(losses(Path("whole"))) == 10
    losses_of("part", *words, "max_steps=7")
    again = resume("part", "max_steps=10")
    assert again.code == 0, again.err
    assert losses(Path("part")) == losses(Path("whole"))


def test_a_ready_loader_decides_the_batch_size():
    words = [word for word in NET if word != "batch_size=8"]
    done = paceline("train", *words, *LOADER, "max_steps=1", "hydra.run.dir=run")
    assert done.code == 0, done.err
    assert json.loads(Path("run/resolved.json").read_text())["batch_size"] == 8
