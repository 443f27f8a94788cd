import pytest
import torch
from torch import nn

from framework.objective.classify import Classify, mean_logits

IMAGE = torch.randn(5, 2, 4, 6, generator=torch.Generator().manual_seed(0))


class Corners(nn.Module):
    """Its logits are two corners of the image: top left, bottom right of the first channel."""

    def forward(self, image):
        return torch.stack([image[:, 0, 0, 0], image[:, 0, -1, -1]], 1)


def test_mirror_averages_an_image_and_its_mirror_image():
    logits = mean_logits(Corners(), IMAGE, "mirror")
    left = (IMAGE[:, 0, 0, 0] + IMAGE[:, 0, 0, -1]) / 2
    right = (IMAGE[:, 0, -1, -1] + IMAGE[:, 0, -1, 0]) / 2
    torch.testing.assert_close(logits, torch.stack([left, right], 1))


def test_translated_views_count_a_half_and_reflect_at_the_border():
    logits = mean_logits(Corners(), IMAGE, "mirror_translate")[:, 0]
    first = IMAGE[:, 0]
    here = (first[:, 0, 0] + first[:, 0, -1]) / 2
    up_left = (first[:, 1, 1] + first[:, 1, 4]) / 2  # outside: the second row and column again
    down_right = (first[:, 1, 1] + first[:, 1, 4]) / 2
    torch.testing.assert_close(logits, here / 2 + (up_left + down_right) / 4)


@pytest.mark.parametrize(("tta", "passes"), [("none", 1), ("mirror", 2), ("mirror_translate", 6)])
def test_views_are_for_evaluation_only(tta, passes):
    model = nn.Sequential(Corners())
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    batch = {"image": IMAGE, "label": torch.zeros(5).long()}
    classify = Classify("image", "label", 0.0, tta)
    classify(model, batch)
    assert len(calls) == 1
    classify(model.eval(), batch)
    assert len(calls) == 1 + passes


def test_a_symmetric_model_gets_the_same_logits():
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    torch.testing.assert_close(mean_logits(model, IMAGE, "mirror"), model(IMAGE))


def test_what_cannot_be_averaged_is_refused():
    with pytest.raises(ValueError, match="tta = turn must be none, mirror or mirror_translate"):
        Classify("image", "label", 0.0, "turn")
    with pytest.raises(ValueError, match="has 3 dimensions"):
        mean_logits(Corners(), IMAGE[0], "mirror")
    with pytest.raises(ValueError, match="not one per pixel"):
        mean_logits(nn.Identity(), IMAGE, "mirror")
