import numpy as np
import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.objective.segment import Segment, confusion_of

IGNORED = 255


def maps(count=5, num_classes=4, seed=0):
    """Return logits and label maps. Some pixels of the maps have no class."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, num_classes, 6, 7, generator=random)
    target = torch.randint(0, num_classes, (count, 1, 6, 7), generator=random).to(torch.uint8)
    target[:, :, 0] = IGNORED
    return {"image": logits, "mask": target}


def measured(*batches):
    segment = Segment("image", "mask")
    totals = [segment(nn.Identity(), batch).totals["confusion"] for batch in batches]
    return segment.metrics({"confusion": torch.stack(totals).sum(0).double()})


def expected_iou(batch):
    """Return the mean IoU, computed from sets of pixels."""
    guess, target = batch["image"].argmax(1).numpy(), batch["mask"].squeeze(1).numpy()
    counted = target != IGNORED
    scores = []
    for number in range(batch["image"].shape[1]):
        inside, wanted = (guess == number) & counted, target == number
        if (inside | wanted).any():
            scores.append((inside & wanted).sum() / (inside | wanted).sum())
    return np.mean(scores)


def test_the_iou_is_that_of_sets_of_pixels():
    assert measured(maps())["iou"] == pytest.approx(expected_iou(maps()), rel=1e-12)


def test_batches_of_any_size_have_the_same_metrics_as_the_whole():
    whole = maps()
    parts = [
        {name: values[start:stop] for name, values in whole.items()}
        for start, stop in ((0, 1), (1, 5))
    ]
    assert measured(*parts) == measured(whole)


def test_a_class_that_does_not_occur_is_left_out_of_the_mean():
    batch = maps(num_classes=2)
    more = torch.full((5, 3, 6, 7), -100.0)
    wider = {**batch, "image": torch.cat([batch["image"], more], dim=1)}
    assert measured(wider)["iou"] == measured(batch)["iou"]


def test_pixels_without_a_class_change_nothing():
    batch = maps()
    changed = {**batch, "image": batch["image"].clone()}
    changed["image"][:, :, 0] = torch.randn(5, 4, 7)
    assert measured(changed) == measured(batch)
    losses = [Segment("image", "mask")(nn.Identity(), entry).loss for entry in (batch, changed)]
    assert losses[0] == losses[1]


def test_the_loss_is_the_mean_over_all_pixels():
    batch = maps()
    logs = batch["image"].log_softmax(1)[:, :, 1:]
    chosen = logs.gather(1, batch["mask"][:, :, 1:].long())
    loss = Segment("image", "mask")(nn.Identity(), batch).loss
    assert loss.item() == pytest.approx(-chosen.sum().item() / (5 * 6 * 7), rel=1e-6)


def test_without_a_single_class_there_is_no_loss_and_no_iou():
    batch = {**maps(), "mask": torch.full((5, 1, 6, 7), IGNORED, dtype=torch.uint8)}
    assert Segment("image", "mask")(nn.Identity(), batch).loss == 0
    assert measured(batch) == {"iou": 0.0, "pixels": 0.0}


def test_a_confusion_counts_target_by_guess():
    guess, target = torch.tensor([[1, 1, 0]]), torch.tensor([[0, 1, IGNORED]])
    assert confusion_of(guess, target, 2).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("shape", [(5, 4, 6, 8), (5, 4)])
def test_logits_of_another_size_are_refused(shape):
    with pytest.raises(ValueError, match=r"the model gives .*, mask is \(5, 6, 7\)"):
        Segment("image", "mask")(nn.Identity(), {**maps(), "image": torch.zeros(shape)})


@pytest.mark.parametrize(
    ("new", "old", "better"),
    [((0.6, 2.0), (0.5, 1.0), True), ((0.5, 1.0), (0.5, 2.0), True), ((0.5, 1.0),) * 2 + (False,)],
)
def test_better_is_a_larger_iou_and_then_a_lower_loss(new, old, better):
    entries = [{"iou": iou, "loss": loss} for iou, loss in (new, old)]
    assert Segment("image", "mask").better(*entries) is better


def expected_dice(batch):
    """Return the mean of 1 minus the Dice coefficient over all classes of all records.

    Each coefficient is computed from the pixels that have a class.
    """
    guess, target = batch["image"].softmax(1), batch["mask"].squeeze(1)
    scores = []
    for record in range(len(guess)):
        counted = target[record] != IGNORED
        for number in range(guess.shape[1]):
            inside = guess[record, number][counted]
            wanted = (target[record][counted] == number).float()
            scores.append(1 - (2 * (inside * wanted).sum() + 1) / (inside.sum() + wanted.sum() + 1))
    return torch.stack(scores).mean()


def test_dice_is_added_by_its_weight_and_both_losses_are_named():
    plain = Segment("image", "mask")(nn.Identity(), maps())
    both = Segment("image", "mask", dice=0.5)(nn.Identity(), maps())
    assert not plain.losses
    assert torch.equal(both.losses["cross_entropy"], plain.loss)
    torch.testing.assert_close(both.losses["dice"], expected_dice(maps()))
    torch.testing.assert_close(both.loss, plain.loss + 0.5 * expected_dice(maps()))
    assert torch.equal(both.totals["confusion"], plain.totals["confusion"])


def test_another_class_may_be_ignored_too():
    batch = maps()
    without = {**batch, "mask": torch.where(batch["mask"] == 2, IGNORED, batch["mask"])}
    expected = Segment("image", "mask", dice=1.0)(nn.Identity(), without)
    outcome = Segment("image", "mask", dice=1.0, ignore=2)(nn.Identity(), batch)
    assert torch.equal(outcome.loss, expected.loss)
    assert torch.equal(outcome.totals["confusion"], expected.totals["confusion"])


def test_a_negative_weight_is_refused():
    with pytest.raises(ConfigError, match=r"C318.*objective.dice = -1"):
        Segment("image", "mask", dice=-1)


def test_predictions_leave_out_pixels_without_a_class():
    model = nn.Identity()
    batch = {"image": torch.randn(2, 3, 4, 4), "mask": torch.randint(3, (2, 1, 4, 4))}
    batch["mask"][0, 0, 0] = 255
    assert Segment("image", "mask")(model, batch).predictions is None
    guess, target = Segment("image", "mask")(model.eval(), batch).predictions
    assert guess.shape == target.shape == (28,)
    assert target.max() < 3
