import pytest
import torch

from framework.order.draws import draws
from framework.transform.video_window import VideoWindow


def test_training_draws_all_places_equally_often():
    numbers = VideoWindow(3, 2).frame_numbers(
        torch.full((900,), 7), draws(torch.arange(900), 0, 0, 1)
    )
    assert set(map(tuple, numbers.tolist())) == {(0, 2, 4), (1, 3, 5), (2, 4, 6)}
    assert min(torch.bincount(numbers[:, 0])) > 240


def test_validation_takes_the_middle():
    numbers = VideoWindow(4, 1).frame_numbers(torch.tensor([4, 5, 10]), None)
    assert numbers.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [3, 4, 5, 6]]


def test_a_short_video_has_its_last_frame_repeated():
    for chosen in (None, draws(torch.arange(2), 0, 0, 1)):
        numbers = VideoWindow(4, 2).frame_numbers(torch.tensor([1, 4]), chosen)
        assert numbers.tolist() == [[0, 0, 0, 0], [0, 2, 3, 3]]


def test_pictures_stay_whole():
    assert VideoWindow(4, 1).windows(torch.tensor([[5, 7]]), None).tolist() == [[0, 0, 5, 7, 0]]


@pytest.mark.parametrize(("frames", "stride"), [(0, 1), (4, 0)])
def test_a_window_without_frames_is_refused(frames, stride):
    with pytest.raises(ValueError, match="both must be at least 1"):
        VideoWindow(frames, stride)
