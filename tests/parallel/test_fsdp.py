import json
from pathlib import Path

import pytest
import torch

from framework.train.checkpoint import newest_path, read_state
from tests.cli.command import losses, paceline
from tests.parallel.launching import of_two_ranks

COMMON = [
    *("epochs=2", "batch_size=96", "report_every=3", "ema_decay=0.9", "clip_norm=1.0"),
    *("optim=adamw", "optim.lr=2e-4", "sink=[jsonl]"),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return of_two_ranks("sharded", tmp_path_factory)


@pytest.mark.slow
def test_every_rank_starts_with_rank_0_s_weights(ranks):
    assert [facts["start"] for facts in ranks] == [ranks[0]["expected_start"]] * 2


def test_each_rank_keeps_a_part(ranks):
    whole = sum(ranks[0]["sizes"].values())
    assert sum(facts["kept"] for facts in ranks) == whole
    assert all(facts["kept"] < whole for facts in ranks)
    assert all(facts["comes_back"] for facts in ranks)


def test_gradients_over_passes_and_ranks_are_those_of_ddp(ranks):
    for facts in ranks:
        assert facts["gradients"] == pytest.approx(facts["of_ddp"], rel=1e-6, abs=1e-7)


def test_large_modules_are_units_of_their_own_and_lists_never(ranks):
    assert ranks[0]["units"] == [["large"], ["inner.0", "small.0", "large"]]


def train(*words, run_dir):
    done = paceline("train", *words, f"hydra.run.dir={run_dir}")
    assert done.code == 0, done.err
    return losses(Path(run_dir))


@pytest.mark.slow
def test_it_learns_what_ddp_does_and_its_states_are_everybody_s():
    units = "parallel.unit_parameters=500"
    expected = train(*COMMON, "parallel=ddp", run_dir="ddp")
    learned = train(*COMMON, "parallel=fsdp", units, run_dir="fsdp")
    assert learned == pytest.approx(expected, rel=1e-5)
    states = [read_state(newest_path(Path(name))) for name in ("ddp", "fsdp")]
    for part in ("model", "average"):
        assert states[0][part].keys() == states[1][part].keys()
        assert all(type(value) is torch.Tensor for value in states[1][part].values())
    for first, second in (("fsdp", "none"), ("none", "fsdp"), ("fsdp", "fsdp")):
        folder = f"{first}-{second}"
        words = [units] if first == "fsdp" else []
        words = [*COMMON, *words, f"parallel={first}", "max_steps=17", "schedule=constant"]
        train(*words, run_dir=folder)
        done = paceline("train", f"resume={folder}", f"parallel={second}", "max_steps=30")
        assert done.code == 0, done.err
        lines = map(json.loads, Path(folder, "metrics.jsonl").read_text().splitlines())
        assert [line["step"] for line in lines if line["split"] == "train"][-1] == 30
    after = [losses(Path(name)) for name in ("fsdp-none", "none-fsdp", "fsdp-fsdp")]
    assert after[0] == pytest.approx(after[1], rel=1e-3)
    assert after[0] == pytest.approx(after[2], rel=1e-3)
