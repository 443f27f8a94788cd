import re
import threading

import pytest
import torch

from framework.config.agreement import check_agreement, code_digest
from framework.errors import DistributedError
from framework.parallel.none import NoParallel
from tests.parallel.launching import of_two_ranks


class Ranks:
    """Ranks in one process. Each of them gathers what all have brought."""

    def __init__(self, world_size):
        self.world_size, self.brought = world_size, [None] * world_size
        self.met = threading.Barrier(world_size)

    def gather(self, rank, values):
        self.brought[rank] = values
        self.met.wait(10)
        return self.brought


class Rank:
    def __init__(self, ranks, rank):
        self.rank, self.world_size, self.gather = (
            rank,
            ranks.world_size,
            lambda values: ranks.gather(rank, values),
        )


def checked(*facts):
    """Return the error message of each rank, or "" for none."""
    ranks, told = Ranks(len(facts)), [""] * len(facts)

    def check(rank):
        try:
            check_agreement(Rank(ranks, rank), facts[rank])
        except DistributedError as error:
            told[rank] = str(error)

    threads = [threading.Thread(target=check, args=(rank,)) for rank in range(len(facts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_ranks_that_agree_go_on():
    assert checked(
        {"seed": 1, "data": "ab"}, {"seed": 1, "data": "ab"}, {"seed": 1, "data": "ab"}
    ) == ["", "", ""]


def test_every_rank_names_the_key_and_the_rank_that_differs():
    told = checked({"seed": 1, "data": "ab"}, {"seed": 1, "data": "ab"}, {"seed": 1, "data": "cd"})
    assert set(told) == {told[0]}
    assert re.search(r"error\[P105\]: rank 2: .*data \(cd, rank 0 has ab\)", told[0])
    assert "seed" not in told[0]


def test_real_ranks_all_get_the_error_before_they_train(tmp_path_factory):
    first, second = of_two_ranks("disagree", tmp_path_factory)
    assert first == second
    assert first["told"].startswith(
        "error[P105]: rank 1: is about to do something else: "
        "data.digest (copy 1, rank 0 has copy 0)"
    )


def test_a_key_that_one_rank_lacks_is_a_difference():
    assert "rank 1" in checked({"seed": 1, "é": "ü"}, {"seed": 1})[0]


def test_one_process_agrees_with_itself():
    check_agreement(NoParallel(device=torch.device("cpu")), {"anything": None})


def test_the_code_s_digest_is_of_all_sources(monkeypatch, tmp_path):
    assert re.fullmatch("[0-9a-f]{16}", code_digest())
    (tmp_path / "__init__.py").write_text("a = 1\n")
    monkeypatch.setattr("framework.__file__", str(tmp_path / "__init__.py"))
    first = code_digest.__wrapped__()
    (tmp_path / "part").mkdir()
    (tmp_path / "part/new.py").write_text("")
    assert code_digest.__wrapped__() != first != code_digest()


@pytest.fixture(autouse=True)
def _fresh():
    code_digest.cache_clear()
    yield
    code_digest.cache_clear()
