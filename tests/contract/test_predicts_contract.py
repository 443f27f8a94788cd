"""What every objective that predicts promises."""

import pytest
import torch
from paceline_examples.detect_objective import Detect
from torch import nn

from framework.contracts.prediction import (
    ClassProbabilities,
    PredictedBoxes,
    PredictedImages,
    PredictedMaps,
    PredictedNumbers,
    PredictedTexts,
    Predicts,
)
from framework.objective import distill, focal, multilabel, recognize, regress, restore, segment
from framework.objective.classify import Classify


class Given(nn.Module):
    """A model with a fixed output."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, *inputs):
        return self.output


LOGITS = torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]])
MAPS = LOGITS[:, :, None, None].expand(2, 3, 4, 4)
STEPS = torch.tensor([3, 2])
SPELLED = nn.functional.one_hot(torch.tensor([[1, 1, 2], [2, 0, 1]]), 3).float()
CASES = {
    "classify": (Classify("image", "label", 0.0), LOGITS, ClassProbabilities),
    "tta": (Classify("image", "label", 0.0, "mirror"), LOGITS, ClassProbabilities),
    "pixels": (Classify("image", "label", 0.0), MAPS, PredictedMaps),
    "focal": (focal.Focal("image", "label", 2.0), LOGITS, ClassProbabilities),
    "multilabel": (multilabel.Multilabel("image", "label"), LOGITS, ClassProbabilities),
    "distill": (
        distill.Distill("image", "label", nn.Identity(), None, 0.5, 1.0),
        LOGITS,
        ClassProbabilities,
    ),
    "segment": (segment.Segment("image", "mask"), MAPS, PredictedMaps),
    "recognize": (recognize.Recognize("image", "text", "ab"), (SPELLED, STEPS), PredictedTexts),
    "regress": (regress.Regress("image", "y", "mse"), LOGITS, PredictedNumbers),
    "restore": (restore.Restore("image", "y", "l1", 2.0), MAPS, PredictedImages),
    "detect": (Detect("image", "boxes", "label"), torch.zeros(2, 6, 4, 4), PredictedBoxes),
}


def predicted(name):
    objective, output, _ = CASES[name]
    batch = {"image": torch.rand(2, 3, 4, 4), "index": torch.arange(2)}  # without a target
    return objective.predict(Given(output).eval(), batch)


@pytest.mark.parametrize("name", CASES)
def test_it_predicts_each_record_without_the_target(name):
    objective, _, kind = CASES[name]
    assert isinstance(objective, Predicts)
    assert list(objective.inputs) == ["image"]
    predictions = predicted(name)
    assert type(predictions) is kind
    assert len(predictions.values) == 2


@pytest.mark.parametrize("name", ["classify", "tta", "focal", "distill"])
def test_probabilities_of_classes_add_up_to_one(name):
    values = predicted(name).values
    assert torch.allclose(values.sum(1), torch.ones(2))
    assert values.argmax(1).tolist() == [1, 0]


def test_each_kind_of_prediction_has_the_values_of_its_kind():
    assert predicted("multilabel").values[0, 0] == 0.5  # several labels stand alone
    maps = predicted("segment").values
    assert maps.dtype == torch.uint8  # as long as classes fit
    assert maps[:, 0, 0].tolist() == [1, 0]
    assert list(predicted("recognize").values) == ["ab", "b"]  # neither repeats nor blanks
    images = predicted("restore").values
    assert images.min() >= 0
    assert images.max() == 1
    assert images[0, 2, 0, 0] == 0.5  # the peak is 2
    scored = predicted("detect").values[0]
    assert scored.boxes.shape == (len(scored.scores), 4)
    assert scored.labels.shape == scored.scores.shape
