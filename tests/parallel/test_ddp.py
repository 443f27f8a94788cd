import json
from pathlib import Path

import pytest
import torch
from torch import nn

from framework.errors import ConfigError, DistributedError
from framework.objective.classify import Classify
from framework.parallel.ddp import DistributedParallel, warm_up_ddp
from framework.precision.fp32 import FP32
from framework.system.rng import generator_state, set_generator_state
from tests.cli.command import losses, paceline
from tests.fakes import CPU
from tests.parallel.launching import of_two_ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return of_two_ranks("talk", tmp_path_factory)


def test_rank_0_s_text_reaches_every_rank_before_there_is_a_group(ranks):
    assert [json.loads(facts["text"]) for facts in ranks] == [{"seed": 7}] * 2


def test_ranks_agree_on_what_was_said_once(ranks):
    first, second = (facts["once"] for facts in ranks)
    assert first == second
    assert True in first


def test_a_process_that_is_no_rank_learns_how_to_start_some(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(
        ConfigError,
        match=r"^error\[C109\]: parallel = ddp: this process is not one of several ranks",
    ):
        DistributedParallel(2, sync_batch_norm=True, timeout_s=1.0, device=CPU)


def test_ranks_that_cannot_meet_say_so(monkeypatch):
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DistributedError, match=r"P101\]: parallel = ddp: the ranks could not meet"):
        DistributedParallel(2, sync_batch_norm=True, timeout_s=1.0, device=CPU)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return of_two_ranks("options", tmp_path_factory)


@pytest.mark.parametrize("name", ["static", "small"])
def test_ways_of_sending_gradients_change_no_bit(options, name):
    for facts in options:
        assert facts[name] == facts["plain"] == options[0]["plain"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compress": "bf16"}, "compress = bf16: does not work among CPUs"),
        ({"compress": "zip"}, "compress = zip: .* none or bf16"),
        ({"static_graph": True, "find_unused": True}, "find_unused = True: excludes"),
    ],
    ids=["bf16 among CPUs", "zip", "static and unused"],
)
def test_an_impossible_option_is_refused(options, words):
    with pytest.raises(ConfigError, match=rf"^error\[C136\]: parallel\.{words}"):
        DistributedParallel(2, False, timeout_s=1.0, **options, device=CPU)


def test_ranks_exchange_no_gradient_of_a_frozen_layer_and_all_after_it_thaws(tmp_path_factory):
    for facts in of_two_ranks("thaw", tmp_path_factory):
        frozen, thawed = facts["seen"]
        assert frozen[:2] == [None, None]
        for actual, expected in zip(thawed, facts["expected"], strict=True):
            assert actual == pytest.approx(expected, rel=1e-5)
        assert frozen[2:] == thawed[2:]
        assert facts["inside"]


@pytest.fixture(scope="module")
def unused(tmp_path_factory):
    return of_two_ranks("unused", tmp_path_factory)


def test_with_find_unused_ranks_learn_what_one_learns_of_a_layer_that_some_passes_use(unused):
    uses = torch.tensor(unused[0]["large"])  # step, pass, rank
    assert uses.any((1, 2)).tolist().count(True) not in (0, len(uses))
    assert (uses[..., 0] != uses[..., 1]).any()
    for facts in unused:
        assert facts["learned"] == pytest.approx(facts["expected"], rel=1e-5)


def test_with_find_unused_a_layer_that_nothing_uses_stays_as_it_is(unused):
    assert all(facts["never"] for facts in unused)


def test_a_layer_without_gradient_is_named_before_the_first_step_and_when_it_is_left_out(unused):
    for facts in unused:
        before, _, later = facts["errors"]
        start = "error[C146]: model: parallel=ddp waits for the gradient of "
        assert before.startswith(f"{start}never.weight, never.bias, which the loss does not use; ")
        assert later.startswith(f"{start}seldom.weight, seldom.bias, which the loss does not use; ")
        assert "parallel.find_unused=true" in before


def test_an_output_in_which_no_tensor_is_seen_is_refused_with_find_unused(unused):
    for facts in unused:
        assert facts["errors"][1].startswith("error[C146]: model: parallel.find_unused=true takes ")


def test_it_leaves_weights_statistics_gradients_and_generators_as_they_were():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generators = generator_state(CPU)
    image = torch.randn(6, 2, 2, generator=torch.Generator().manual_seed(1))
    batch = {"index": torch.arange(6), "image": image, "label": torch.arange(6) % 3}
    warm_up_ddp(model, Classify("image", "label", 0.0), FP32(False, device=CPU), batch, CPU)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [item.grad for item in model.parameters()] == [None] * 4
    drawn = torch.rand(5)
    set_generator_state(generators, CPU)
    assert torch.equal(torch.rand(5), drawn)


@pytest.mark.slow
def test_three_ranks_that_go_on_learn_the_same_bits(tmp_path):
    """From three on, a sum depends on its order, so on DDP's buckets: here several."""
    words = [
        *("train", "parallel=ddp", "parallel.num_processes=3", "parallel.bucket_mb=0.02"),
        *("batch_size=96", "epochs=2"),
    ]
    words += ["schedule=constant", "report_every=1", "sink=[jsonl]", "workers.num=0"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert paceline(*words, "max_steps=24", f"hydra.run.dir={whole}").code == 0
    assert paceline(*words, "max_steps=9", f"hydra.run.dir={parts}").code == 0
    done = paceline("train", f"resume={parts}", "max_steps=24")
    assert done.code == 0, done.err
    assert len(losses(Path(whole))) == 24
    assert losses(Path(parts)) == losses(Path(whole))
