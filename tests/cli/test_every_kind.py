"""Fields of every kind, trained by the command: whoever reads them, the same is learned."""

import json
from pathlib import Path

import pytest

from tests.cli.command import losses, paceline

pytestmark = pytest.mark.slow

MINE = """
import io

import numpy as np
import soundfile
import torch
from framework.contracts.training import Outcome


def record(number):
    draw = np.random.default_rng(number)
    rows = number % 4
    wave = draw.uniform(-0.5, 0.5, 40 + number)
    file = io.BytesIO()
    soundfile.write(file, wave, 8000, format="WAV")
    boxes = draw.uniform(0, 4, (rows, 4)).astype(np.float32)
    boxes[:, 2:] += boxes[:, :2]
    return {
        "image": draw.integers(0, 256, (3, 8, 8), np.uint8),
        "mask": draw.integers(0, 3, (1, 8, 8), np.uint8),
        "label": np.int64(number % 3),
        "signal": draw.normal(size=(1 + number % 7, 2)).astype(np.float32),
        "text": "ab" * rows + chr(0xE9),
        "blob": bytes(range(rows)),
        "boxes": boxes,
        "points": draw.uniform(0, 8, (2, 2)).astype(np.float32),
        "sound": file.getvalue(),
        "key": f"record {number}",
    }


class Everything:
    def __call__(self, model, batch):
        size = len(batch["label"])
        assert len(batch["text"]) == len(batch["blob"]) == size
        columns = [
            batch["image"].float().mean((1, 2, 3)) / 255,
            batch["mask"].float().mean((1, 2, 3)),
            batch["signal"].sum((1, 2)) / batch["signal_length"],
            batch["boxes"].sum((1, 2)) / 50,
            batch["points"].sum((1, 2)) / 50,
            batch["sound"].sum(1) / batch["sound_length"],
            torch.tensor([len(text.encode()) for text in batch["text"]]) / 10,
            torch.tensor([float(sum(blob)) for blob in batch["blob"]]),
        ]
        # Rows of a matrix product may be rounded by their number; sums of columns are not.
        logits = model(torch.stack(columns, 1).float())
        loss = torch.nn.functional.cross_entropy(logits, batch["label"])
        return Outcome(loss, {}, size)

    def better(self, new, old):
        return new["loss"] < old["loss"]
"""
KINDS = "input.kinds={text: text, blob: bytes, boxes: boxes, points: points, signal: ragged}"
TRAIN = (
    *("recipes=null", "data.val=null", "transform=random_crop", "transform.size=[6, 6]"),
    *("augment=none", "model=null", "+model._target_=torch.nn.Linear", "+model.in_features=8"),
    *("+model.out_features=3", "objective=null", "+objective._target_=mine.Everything"),
    *("allow_targets=[mine]", "batch_size=6", "epochs=2", "report_every=1", "sink=[jsonl]"),
    *("schedule=constant", "order=buckets", "order.field=signal"),
)
STEPS = 14  # 40 records in batches of 6, twice


@pytest.fixture(autouse=True)
def _stores():
    """Write the same records as a store of each format."""
    Path("mine.py").write_text(MINE)
    words = ("input=function", "input.function=mine.record", "input.items=40", KINDS)
    words = (*words, "input.labels=[mask]", "allow_targets=[mine]", "workers=0")
    for output in ("hdf5", "lmdb"):
        done = paceline("pack", *words, f"output={output}", f"output.path={output}")
        assert done.code == 0, done.err


def train(*words: str) -> list[float]:
    """Train on one process, and return the losses."""
    done = paceline("train", *TRAIN, "data.train=hdf5", "hydra.run.dir=run", *words)
    assert done.code == 0, done.err
    return losses(Path("run"))


def swept(folder: str, *words: str) -> list[list[float]]:
    """Run a sweep, and return the losses of each job."""
    done = paceline("train", "-m", *TRAIN, *words, f"hydra.sweep.dir={folder}")
    assert done.code == 0, done.out + done.err
    return [losses(path.parent) for path in Path(folder).glob("*/metrics.jsonl")]


def test_stores_loaders_and_workers_change_nothing():
    stores = ("data=hdf5,lmdb", "data.train=${hydra:runtime.choices.data}")
    jobs = [
        *swept("loaders", "loader=plain,stream", "workers.num=0", *stores),
        *swept("workers", "workers.kind=thread,process", "workers.num=2", *stores),
        *swept("dali", "data=dali", "data.train=hdf5,lmdb"),
    ]
    assert len(jobs) == 4 + 4 + 2
    assert len(jobs[0]) == STEPS
    assert all(job == jobs[0] for job in jobs)


def test_a_run_resumes_with_the_same_numbers_from_another_store():
    whole = train()
    assert len(whole) == STEPS
    Path("run").rename("whole")
    assert train("max_steps=9") == whole[:9]
    other = ("data=lmdb", "data.train=lmdb", "workers.num=2", "loader=stream")
    done = paceline("train", "resume=run", "max_steps=null", "allow_targets=[mine]", *other)
    assert done.code == 0, done.err
    assert losses(Path("run")) == whole


def test_two_ranks_learn_what_one_learns():
    alone = train()
    Path("run").rename("alone")
    together = train("parallel=ddp", "parallel.num_processes=2")
    assert together == pytest.approx(alone, rel=1e-5)
    assert json.loads(Path("run/summary.json").read_text())["choices"]["parallel"] == "ddp"
