import pytest
import torch

from framework.system.checked_kernel import CheckedKernel

RIGHT = torch.arange(4.0)


def right():
    return RIGHT.clone()


def test_the_first_result_of_each_kind_is_compared():
    kernel, compared = CheckedKernel(), []

    def operators():
        compared.append(1)
        return right()

    for kind in ("a", "a", "b"):
        assert kernel(kind, right, operators).equal(RIGHT)
    assert len(compared) == 2


@pytest.mark.parametrize("wrong", [RIGHT + 1, RIGHT.double()])
def test_another_result_ends_its_use(wrong):
    kernel = CheckedKernel()
    assert kernel("a", lambda: wrong, right) is None
    assert kernel.failure == "its numbers differ from the operators'"
    assert kernel("b", right, right) is None


def test_an_error_ends_its_use():
    def missing():
        raise ModuleNotFoundError("No module named 'triton'")

    kernel = CheckedKernel()
    assert kernel("a", missing, right) is None
    assert kernel.failure == "ModuleNotFoundError: No module named 'triton'"
