import json

import pytest
import torch

from framework.errors import ConfigError, DistributedError
from framework.parallel.ddp import DistributedParallel
from framework.parallel.processes import under_launcher
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
    assert not under_launcher()
    with pytest.raises(
        ConfigError,
        match=r"^error\[C109\]: parallel = ddp: this process is not one of several ranks",
    ):
        DistributedParallel(2, sync_batch_norm=True, timeout_s=1.0, device=torch.device("cpu"))


def test_ranks_that_cannot_meet_say_so(monkeypatch):
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "no number",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        DistributedError, match=r"^error\[P101\]: parallel = ddp: the ranks could not meet"
    ):
        DistributedParallel(2, sync_batch_norm=True, timeout_s=1.0, device=torch.device("cpu"))


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
        DistributedParallel(2, False, timeout_s=1.0, **options, device=torch.device("cpu"))


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
