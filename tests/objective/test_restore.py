import math

import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.objective.restore import Restore

SHARP = torch.full((2, 3, 4, 4), 0.5)
BLURRY = SHARP + torch.tensor([0.1, 0.01]).view(2, 1, 1, 1)  # errors of 20 and 40 dB


def restore(loss="l1", peak=1.0):
    return Restore("blurry", "sharp", loss, peak)


def test_psnr_is_counted_image_by_image():
    outcome = restore()(nn.Identity(), {"blurry": BLURRY, "sharp": SHARP})
    assert outcome.sums["psnr"].tolist() == pytest.approx([20, 40], abs=1e-3)
    assert outcome.sums["input_psnr"].tolist() == pytest.approx([20, 40], abs=1e-3)
    assert outcome.count == 2


@pytest.mark.parametrize(
    ("loss", "expected"), [("l1", (0.1 + 0.01) / 2), ("mse", (0.01 + 0.0001) / 2)]
)
def test_the_loss_is_the_mean_error(loss, expected):
    assert float(
        restore(loss)(nn.Identity(), {"blurry": BLURRY, "sharp": SHARP}).loss
    ) == pytest.approx(expected, rel=1e-4)


def test_bytes_are_taken_as_parts_of_255():
    black, white = (
        torch.zeros(1, 3, 2, 2, dtype=torch.uint8),
        torch.full((1, 3, 2, 2), 255, dtype=torch.uint8),
    )
    outcome = restore()(nn.Identity(), {"blurry": black, "sharp": white})
    assert (float(outcome.loss), float(outcome.sums["psnr"])) == (1, 0)


def test_what_is_beyond_the_peak_is_cut_for_the_psnr_but_learned_from():
    outcome = restore(peak=2.0)(
        nn.Identity(), {"blurry": torch.full((1, 4), 3.0), "sharp": torch.full((1, 4), 2.0)}
    )
    assert (float(outcome.loss), float(outcome.sums["psnr"])) == (1, 100)
    assert float(outcome.sums["input_psnr"]) == pytest.approx(10 * math.log10(4), abs=1e-4)


def test_a_smaller_input_has_no_psnr_of_its_own():
    larger = nn.Upsample(scale_factor=2)
    outcome = restore()(larger, {"blurry": torch.rand(1, 3, 2, 2), "sharp": torch.rand(1, 3, 4, 4)})
    assert outcome.sums.keys() == {"psnr"}


def test_half_precision_results_are_compared_in_single():
    outcome = restore()(nn.Identity().bfloat16(), {"blurry": BLURRY.bfloat16(), "sharp": SHARP})
    assert outcome.loss.dtype == outcome.sums["psnr"].dtype == torch.float32


def test_the_loss_has_a_gradient_and_the_counts_have_none():
    outcome = restore()(nn.Conv2d(3, 3, 1), {"blurry": BLURRY, "sharp": SHARP})
    assert outcome.loss.requires_grad
    assert not any(value.requires_grad for value in outcome.sums.values())


def test_shapes_that_differ_are_refused_where_torch_would_broadcast():
    with pytest.raises(
        ValueError, match=r"the model gives \(1, 3, 2, 2\), sharp is \(1, 1, 2, 2\)"
    ):
        restore()(
            nn.Identity(), {"blurry": torch.rand(1, 3, 2, 2), "sharp": torch.rand(1, 1, 2, 2)}
        )


def test_an_output_that_is_a_dict_is_predicted_too():
    predicted = restore().predict(lambda image: {"out": image}, {"blurry": BLURRY})
    assert torch.equal(predicted.values, BLURRY)


def test_better_is_a_higher_psnr():
    assert restore().better({"psnr": 31.0, "loss": 2.0}, {"psnr": 30.0, "loss": 1.0})
    assert not restore().better({"psnr": 30.0}, {"psnr": 30.0})


def test_an_unknown_loss_is_named():
    with pytest.raises(
        ConfigError, match=r"^error\[C111\]: objective.loss = huber: not a loss; choose mse or l1$"
    ):
        restore("huber")
