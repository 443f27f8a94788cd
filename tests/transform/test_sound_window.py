import pytest
import torch

from framework.order.draws import draws
from framework.transform.sound_window import SoundWindow


def test_windows_lie_in_their_sounds_and_begin_anywhere():
    lengths = torch.tensor([10, 11, 13] * 200)
    starts = SoundWindow(10).starts(lengths, draws(torch.arange(600), 0, 0, 1))
    assert starts.view(-1, 3).amax(0).tolist() == [0, 1, 3]
    assert starts.min() == 0


def test_outside_training_the_window_is_in_the_middle():
    assert SoundWindow(4).starts(torch.tensor([2, 4, 9]), None).tolist() == [0, 0, 2]


def test_images_stay_whole():
    windows = SoundWindow(4).windows(torch.tensor([[5, 7]]), None)
    assert windows.tolist() == [[0, 0, 5, 7, 0]]


def test_a_window_has_a_length():
    with pytest.raises(ValueError, match="samples = 0"):
        SoundWindow(0)
