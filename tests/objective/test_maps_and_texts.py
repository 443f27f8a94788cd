"""Objectives of label maps and of texts: losses, metrics and refusals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from framework.errors import ConfigError
from framework.objective.recognize import Recognize, edit_distance
from framework.objective.segment import Segment, confusion_of

IGNORED = 255
MODEL = nn.Identity()


def maps(count=5, num_classes=4):
    """Return logits and label maps. Some pixels of the maps have no class."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(count, num_classes, 6, 7, generator=random)
    target = torch.randint(0, num_classes, (count, 1, 6, 7), generator=random).to(torch.uint8)
    target[:, :, 0] = IGNORED
    return {"image": logits, "mask": target}


def measured(*batches):
    segment = Segment("image", "mask")
    totals = [segment(MODEL, batch).totals["confusion"] for batch in batches]
    return segment.metrics({"confusion": torch.stack(totals).sum(0).double()})


def expected_iou(batch):
    """Return the mean IoU, computed from sets of pixels."""
    guess, target = batch["image"].argmax(1).numpy(), batch["mask"].squeeze(1).numpy()
    scores = []
    for number in range(batch["image"].shape[1]):
        inside, wanted = (guess == number) & (target != IGNORED), target == number
        scores.append((inside & wanted).sum() / (inside | wanted).sum())
    return np.mean(scores)


def test_the_iou_is_that_of_sets_of_pixels_over_batches_of_any_size():
    whole = maps()
    parts = [
        {name: values[start:stop] for name, values in whole.items()}
        for start, stop in ((0, 1), (1, 5))
    ]
    assert measured(whole)["iou"] == pytest.approx(expected_iou(whole), rel=1e-12)
    assert measured(*parts) == measured(whole)


def test_a_class_that_does_not_occur_is_left_out_of_the_mean():
    batch = maps(num_classes=2)
    more = torch.full((5, 3, 6, 7), -100.0)
    wider = {**batch, "image": torch.cat([batch["image"], more], dim=1)}
    assert measured(wider)["iou"] == measured(batch)["iou"]


def test_the_loss_is_the_mean_over_pixels_with_a_class_and_others_change_nothing():
    batch = maps()
    logs = batch["image"].log_softmax(1)[:, :, 1:]
    chosen = logs.gather(1, batch["mask"][:, :, 1:].long())
    changed = {**batch, "image": batch["image"].clone()}
    changed["image"][:, :, 0] = torch.randn(5, 4, 7)
    for own in (batch, changed):
        loss = Segment("image", "mask")(MODEL, own).loss
        assert loss.item() == pytest.approx(-chosen.sum().item() / (5 * 5 * 7), rel=1e-6)
    assert measured(changed) == measured(batch)


def test_without_a_single_class_there_is_no_loss_and_no_iou():
    batch = {**maps(), "mask": torch.full((5, 1, 6, 7), IGNORED, dtype=torch.uint8)}
    assert Segment("image", "mask")(MODEL, batch).loss == 0
    assert measured(batch) == {"iou": 0.0, "pixels": 0.0}


def test_a_confusion_counts_target_by_guess():
    guess, target = torch.tensor([[1, 1, 0]]), torch.tensor([[0, 1, IGNORED]])
    assert confusion_of(guess, target, 2).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("shape", [(5, 4, 6, 8), (5, 4)])
def test_logits_of_another_size_are_refused(shape):
    with pytest.raises(ValueError, match=r"the model gives .*, mask is \(5, 6, 7\)"):
        Segment("image", "mask")(MODEL, {**maps(), "image": torch.zeros(shape)})


def expected_dice(batch):
    """Return the mean of 1 - Dice over classes of records, by the pixels with a class."""
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
    plain = Segment("image", "mask")(MODEL, maps())
    both = Segment("image", "mask", dice=0.5)(MODEL, maps())
    assert not plain.losses
    assert torch.equal(both.losses["cross_entropy"], plain.loss)
    torch.testing.assert_close(both.losses["dice"], expected_dice(maps()))
    torch.testing.assert_close(both.loss, plain.loss + 0.5 * expected_dice(maps()))
    assert torch.equal(both.totals["confusion"], plain.totals["confusion"])


def test_another_class_may_be_ignored_too():
    batch = maps()
    without = {**batch, "mask": torch.where(batch["mask"] == 2, IGNORED, batch["mask"])}
    expected = Segment("image", "mask", dice=1.0)(MODEL, without)
    outcome = Segment("image", "mask", dice=1.0, ignore=2)(MODEL, batch)
    assert torch.equal(outcome.loss, expected.loss)
    assert torch.equal(outcome.totals["confusion"], expected.totals["confusion"])


def test_predictions_leave_out_pixels_without_a_class_and_are_of_evaluation_only():
    batch = maps(2, 3)
    assert Segment("image", "mask")(nn.Identity(), batch).predictions is None
    guess, target = Segment("image", "mask")(nn.Identity().eval(), batch).predictions
    assert guess.shape == target.shape == (2 * 5 * 7,)
    assert target.max() < 3


class Given(nn.Module):
    """Gives the logits of a batch as they are."""

    def forward(self, logits, steps):
        return logits, steps


def spelled(*lines, sure=20.0):
    """Return logits whose best symbols spell the lines over ``_abc``, and their step counts."""
    width = max(map(len, lines))
    symbols = [["_abc".index(char) for char in line.ljust(width, "a")] for line in lines]
    logits = sure * nn.functional.one_hot(torch.tensor(symbols), 4).float()
    return logits, torch.tensor(list(map(len, lines)))


def recognize(*lines, texts, training=False, alphabet="abc", **more):
    logits, steps = spelled(*lines, **more)
    objective = Recognize(["logits", "steps"], "text", alphabet)
    batch = {"logits": logits, "steps": steps, "text": texts}
    return objective(Given().train(training), batch)


def test_a_text_that_every_step_spells_costs_nothing():
    outcome = recognize("_aa_b", "cc_c", texts=["ab", "cc"])
    assert outcome.loss.item() == pytest.approx(0, abs=1e-6)


def test_the_loss_is_that_of_all_ways_to_spell_a_text_per_character():
    # Of the four symbols, alike at both steps: a_, _a and aa spell "a", and ab spells "ab".
    outcome = recognize("aa", "aa", texts=["a", "ab"], sure=0.0)
    assert outcome.loss.item() == pytest.approx((math.log(16 / 3) + math.log(16) / 2) / 2)


def test_a_line_with_too_few_steps_has_an_infinite_loss():
    assert recognize("aa", texts=["aa"]).loss.item() == math.inf


def test_repeats_and_blanks_are_left_out_and_padding_is_not_read():
    objective = Recognize(["logits", "steps"], "text", "abc")
    assert objective.read(*spelled("aab", "_a_a", "_")) == ["ab", "aa", ""]


def test_the_error_rate_is_over_all_characters_and_not_over_lines():
    totals = recognize("abcabcabc", "b", texts=["abcabcabc", "a"]).totals
    assert {name: value.item() for name, value in totals.items()} == {"errors": 1, "characters": 10}
    objective = Recognize("logits", "text", "abc")
    doubles = {name: value.double() for name, value in totals.items()}
    assert objective.metrics(doubles) == {"cer": 0.1}
    nothing = {name: torch.zeros(()) for name in totals}
    assert objective.metrics(nothing) == {"cer": 0.0}
    assert recognize("a", texts=["a"], training=True).totals == {}


def test_a_character_that_the_alphabet_lacks_is_named():
    with pytest.raises(ConfigError, match=r"C276.*lacks 'ä' of the text 'bäc'"):
        recognize("abc", texts=["bäc"])


def test_a_model_with_another_number_of_symbols_is_refused():
    with pytest.raises(ValueError, match="gives 4 symbols, the alphabet has 2"):
        recognize("a", texts=["a"], alphabet="ab")


def slow_distance(text, other):
    """Return the edit distance by its definition, without a table."""
    if not text or not other:
        return len(text) + len(other)
    replaced = slow_distance(text[1:], other[1:]) + (text[0] != other[0])
    shorter = slow_distance(text[1:], other), slow_distance(text, other[1:])
    return min(replaced, 1 + min(shorter))


@given(st.text("ab", max_size=5), st.text("ab", max_size=5))
def test_the_edit_distance_is_its_definition(text, other):
    assert edit_distance(text, other) == slow_distance(text, other)
