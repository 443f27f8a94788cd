"""The parts of ``recipes=cifar10_fast`` together, on the digits: the same weights in every way."""

import pytest
import torch

from framework.cli.arguments import granted
from framework.cli.hydra_app import composed
from framework.config.prepare_data import prepare
from framework.pack.pack_store import pack
from framework.run import run
from framework.train.checkpoint import newest_state
from tests.cli.command import losses, paceline

WORDS = (
    *("recipes=digits", "batch_size=32", "limit=96", "model=airbench", "model.widths=[8,16]"),
    *("model.whiten_records=50", "optim=decoupled_sgd"),
    "+optim.groups.norms={match: '*.norm?.bias', lr_factor: 64}",
    *("+optim.groups.whitening={match: whiten.bias, until: 0.5}", "augment=crop_flip"),
    *("augment.padding=2", "augment.padding_mode=reflect", "augment.alternate=true"),
    *("objective.label_smoothing=0.2", "objective.tta=mirror_translate", "schedule.final=0.07"),
    *("ema_decay=0.95", "ema_every=2", "ema_ramp=3", "ema_lookahead=true", "epochs=4"),
    *("checkpoint.every_epochs=null", "validate_every=1000", "report_every=1"),
)


def config_of(dataset, *words):
    return composed([f'dataset="{dataset}"', *WORDS, *words], granted(["dataset=..."]))[0]


def trained(dataset, folder, *words, stop=lambda: False):
    folder.mkdir(exist_ok=True)
    return run(config_of(dataset, *words), folder, (), stop, print)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Pack the digits once, as the recipe says, and return their folder."""
    folder = tmp_path_factory.mktemp("digits")
    prepare(config_of(folder), (), pack, print)
    return folder


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """Train for four epochs of three steps, and return the folder of the run."""
    folder = tmp_path_factory.mktemp("whole")
    trained(dataset, folder)
    return folder


def same(first, second):
    """Return whether two nested states hold the same bits."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def learned(folder):
    state = newest_state(folder).state
    return {name: state[name] for name in ("model", "average", "optimizer", "val", "progress")}


@pytest.mark.parametrize("stop_after", [4, 5])
def test_a_resumed_run_learns_the_same_bits(dataset, whole, tmp_path, stop_after):
    steps = iter(range(1, 100))
    stop = lambda: next(steps) == stop_after  # noqa: E731
    assert trained(dataset, tmp_path, stop=stop)["status"] == "interrupted"
    trained(dataset, tmp_path, f'resume.run="{tmp_path}"')
    assert same(learned(tmp_path), learned(whole))


@pytest.mark.parametrize(
    "words", [("loader=stream", "workers.num=2"), ("loader=plain", "data.stage=ram")]
)
def test_it_learns_the_same_bits_with_every_loader(dataset, whole, tmp_path, words):
    trained(dataset, tmp_path, *words)
    assert same(learned(tmp_path), learned(whole))


def test_the_whitening_bias_learns_in_the_first_steps_only(dataset, whole, tmp_path):
    steps = iter(range(1, 100))
    trained(dataset, tmp_path, "ema_lookahead=false", stop=lambda: next(steps) == 6)
    half = newest_state(tmp_path).state["model"]["whiten.bias"]
    trained(dataset, tmp_path, "ema_lookahead=false", f'resume.run="{tmp_path}"')
    assert half.abs().sum() > 0
    assert torch.equal(newest_state(tmp_path).state["model"]["whiten.bias"], half)


def test_the_first_layer_is_computed_from_the_data(whole):
    weight = newest_state(whole).state["model"]["whiten.weight"]
    assert weight.shape == (8, 1, 2, 2)
    assert torch.equal(weight[:4], -weight[4:])
    inner = (weight[:4].flatten(1) @ weight[:4].flatten(1).T).abs()
    assert (inner - torch.diag(inner.diag())).max() < 1e-3 * inner.max()  # still eigenvectors


def ranks(dataset, folder, *words):
    """Train for a short time on one or more ranks, and return the losses and the learned state."""
    common = [f"dataset={dataset}", *WORDS, "epochs=2", "sink=[jsonl]"]
    done = paceline("train", *common, *words, f"hydra.run.dir={folder}")
    assert done.code == 0, done.err
    return losses(folder), learned(folder)


@pytest.mark.slow
def test_two_ranks_learn_the_same_to_rounding(dataset, tmp_path):
    alone, state = ranks(dataset, tmp_path / "alone")
    both, other = ranks(dataset, tmp_path / "both", "parallel=ddp", "parallel.num_processes=2")
    assert both == pytest.approx(alone, rel=1e-3)
    first, second = (entry["model"]["whiten.weight"] for entry in (state, other))
    assert torch.equal(first, second)
