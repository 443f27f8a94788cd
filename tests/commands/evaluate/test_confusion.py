"""Which classes are taken for which."""

import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from framework.commands.evaluate.confusion import class_figures, counted, trimmed
from framework.contracts.prediction import ClassProbabilities, PredictedMaps, PredictedTexts


def test_counts_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(200, 4, generator=generator)
    target = torch.randint(0, 4, (200,), generator=generator)
    counts = counted(ClassProbabilities(probabilities), target)
    guess = probabilities.argmax(1)
    assert counts.tolist() == confusion_matrix(target, guess).tolist()
    figures = class_figures(counts, ["a", "b", "c"])
    expected = precision_recall_fscore_support(target, guess)
    for row, precision, recall, f1, count in zip(figures, *expected, strict=True):
        assert (row.precision, row.recall, row.f1) == pytest.approx((precision, recall, f1))
        assert row.count == count
    assert [row.name for row in figures] == ["a", "b", "c", "3"]


def test_pixels_without_a_class_do_not_count():
    maps = PredictedMaps(torch.tensor([[[0, 1], [1, 1]]], dtype=torch.uint8))
    target = torch.tensor([[[[0, 0], [1, 255]]]], dtype=torch.uint8)
    assert trimmed(counted(maps, target), 0).tolist() == [[1, 1], [0, 1]]


def test_a_class_that_neither_occurs_nor_is_guessed_has_no_figures():
    figures = class_figures(torch.tensor([[2.0, 0], [0, 0]]), [])
    assert figures[1].f1 is None
    assert figures[1].iou is None
    assert figures[0].iou == 1


def test_predictions_that_are_no_classes_are_not_counted():
    assert counted(PredictedTexts(["a"]), torch.zeros(1)) is None
    assert counted(ClassProbabilities(torch.rand(2, 3)), torch.rand(2)) is None
