"""Which algorithms are taken is a matter of the process, so each test puts it back."""

import pytest
import torch

from framework.system.algorithms import choose_algorithms

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    choose_algorithms(CPU, deterministic=True)
    choose_algorithms(CPU, deterministic=False)


def test_an_operator_without_a_repeatable_algorithm_is_an_error():
    choose_algorithms(CPU, deterministic=True)
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))


def test_the_next_run_in_this_process_may_choose_otherwise():
    choose_algorithms(CPU, deterministic=True)
    choose_algorithms(CPU, deterministic=False)
    torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))


def test_what_the_user_s_code_has_chosen_stays():
    torch.use_deterministic_algorithms(True)
    choose_algorithms(CPU, deterministic=False)
    assert torch.are_deterministic_algorithms_enabled()
