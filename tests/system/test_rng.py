import random

import numpy as np
import pytest
import torch

from framework.system import rng

CPU = torch.device("cpu")


def drawn():
    """Draw from every generator. Some keep half of what they made for the next draw."""
    normal = [random.gauss(0, 1), np.random.randn(), np.random.randn()]  # noqa: NPY002
    numpy = np.random.rand(3).tolist()  # noqa: NPY002
    return [random.random(), *normal, *torch.randn(3).tolist(), *numpy]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_what_is_drawn_after_is_drawn_again(before):
    for _ in range(before):
        random.gauss(0, 1)
        np.random.randn()  # noqa: NPY002
    state = rng.generator_state(CPU)
    expected = [drawn() for _ in range(3)]
    rng.set_generator_state(state, CPU)
    assert [drawn() for _ in range(3)] == expected


@pytest.mark.parametrize("seed", [0, 1 << 40])
def test_a_seed_is_a_beginning_for_all(seed):
    result = []
    for item in (seed, seed, seed + 1):
        rng.seed_generators(item)
        result.append(drawn())
    assert result[0] == result[1]
    assert all(first != second for first, second in zip(result[0], result[2], strict=True))


@pytest.mark.parametrize(
    "draw", [random.random, np.random.rand, np.random.randn, lambda: torch.rand(1)]
)
def test_a_mark_moves_with_each_generator(draw):
    rng.seed_host_generators(1)
    mark = rng.generator_mark()
    assert rng.generator_mark() == mark
    draw()
    assert rng.generator_mark() != mark


def test_what_is_drawn_inside_moves_nothing():
    rng.seed_generators(3)
    expected = drawn()
    rng.seed_generators(3)
    with rng.kept_generators(CPU):
        drawn()
    assert drawn() == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_a_gpu_s_generator_is_part_of_it():
    device = torch.device("cuda", 0)
    state = rng.generator_state(device)
    expected = torch.rand(5, device=device)
    rng.set_generator_state(state, device)
    assert torch.equal(torch.rand(5, device=device), expected)
    rng.set_generator_state(rng.generator_state(CPU), device)  # of a run without one


@pytest.fixture
def algorithms(monkeypatch):
    """Put the choice back, which is the process's."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    rng.choose_algorithms(CPU, deterministic=True)
    rng.choose_algorithms(CPU, deterministic=False)


def test_an_operator_without_a_repeatable_algorithm_is_an_error_until_the_next_run(algorithms):
    rng.choose_algorithms(CPU, deterministic=True)
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))
    rng.choose_algorithms(CPU, deterministic=False)
    torch.zeros(3).put_(torch.tensor([0, 0]), torch.ones(2))


def test_what_the_user_s_code_has_chosen_stays(algorithms):
    torch.use_deterministic_algorithms(True)
    rng.choose_algorithms(CPU, deterministic=False)
    assert torch.are_deterministic_algorithms_enabled()
