import torch

from framework.transform.none import NoTransform


def test_the_window_is_the_whole_image():
    sizes = torch.tensor([[3, 5], [7, 1]])
    assert NoTransform().windows(sizes, None).tolist() == [[0, 0, 3, 5, 0], [0, 0, 7, 1, 0]]


def test_nothing_is_scaled_or_drawn():
    assert NoTransform().size is None
    assert NoTransform().num_draws == 0
    assert NoTransform().function is None
