import json
import struct

import pytest
import torch

from framework.contracts.training import Report, RunContext
from framework.sink.wandb import WandbSink
from framework.system.run_dir import write_object

SAMPLE = {"image": torch.zeros(4, 3, 8, 8, dtype=torch.uint8)}
BLOCK = 1 << 15


@pytest.fixture
def run_dir(tmp_path):
    run_dir = tmp_path / "my run"
    (run_dir / "checkpoints").mkdir(parents=True)
    (run_dir / "checkpoints" / "best.pt").write_bytes(b"weights")
    write_object(run_dir / "resolved.json", {"optim": {"lr": 0.1}})
    return run_dir


def log(run_dir, *reports, start_step=0):
    printed = []
    run = RunContext(run_dir, 10, 1, start_step, SAMPLE, printed.append)
    sink = WandbSink("paceline", None, 4, True, 0.1, 60.0, run=run)
    for each in reports:
        sink.write(each)
    sink.close()
    return printed


def report(step, loss=1.0, split="train"):
    return Report(split, step, 1, {"loss": loss}, 1000.0, {}, 0.1)


def records(run_dir):
    """Yield the records of an offline run, from a log in blocks as LevelDB writes it."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = run_dir.glob("wandb/offline-run-*/run-*.wandb")
    data = path.read_bytes()
    at, parts = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def losses(run_dir):
    rows = [
        {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
        for items in (record.history.item for record in records(run_dir))
    ]
    return [(row["_step"], row["loss/train"]) for row in rows if "loss/train" in row]


@pytest.mark.slow
def test_an_offline_run_holds_everything_and_the_command_that_sends_it_is_said(run_dir):
    (line,) = log(run_dir, report(5), report(5, 0.5, "val"), report(10))
    assert line.startswith("wandb: an offline run, send it with: wandb sync '")
    assert losses(run_dir) == [(5, 1.0), (10, 1.0)]
    (folder,) = run_dir.glob("wandb/offline-run-*/files")
    assert (folder / "checkpoints" / "best.pt").read_bytes() == b"weights"
    assert list(folder.glob("media/images/sample-image*.png"))
    config = {item.key: item.value_json for part in records(run_dir) for item in part.config.update}
    assert config["optim.lr"] == '"0.1"'


@pytest.mark.slow
def test_a_resumed_run_replaces_what_came_after_its_step_under_the_same_id(run_dir):
    log(run_dir, report(2), report(4), report(6))
    (before,) = run_dir.glob("wandb/offline-run-*")
    log(run_dir, report(6, 9.0), report(10), start_step=4)
    (after,) = run_dir.glob("wandb/offline-run-*")
    assert after.name.rpartition("-")[2] == before.name.rpartition("-")[2]
    assert losses(run_dir) == [(2, 1.0), (4, 1.0), (6, 9.0), (10, 1.0)]
