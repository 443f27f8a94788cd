"""Several labels per record: binary cross-entropy to learn, F1 to look at."""

from collections.abc import Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.class_labels import LabelRange
from framework.contracts.prediction import ClassProbabilities, Predictions
from framework.contracts.training import Outcome
from framework.objective import scores


@final
class Multilabel(scores.Ranked):
    """Binary cross-entropy over the model's logits [B, labels]. Better: higher ``f1``.

    A label is guessed if its logit is above 0. ``accuracy`` is the share of right guesses. ``f1``
    counts the guesses of all labels, records and ranks together, which is the micro average. The
    target has 1 for each label of the record and 0 for the others, [B, labels]. ``class_weights``
    has the weight of each label where it is 1, or is None.
    """

    ranking = ("f1", "-loss", "accuracy")

    def __init__(
        self,
        input: str | Sequence[str],  # noqa: A002
        target: str,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        self.inputs = scores.input_names(input)
        self.target = target
        self._weights = scores.ClassWeights(class_weights)
        self.label_range = LabelRange(target, 2)

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        logits = scores.predicted(model, batch, self.inputs).float()
        target = batch[self.target].float()
        scores.check_shapes(logits, target, self.target)
        weights = self._weights.on(logits)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target, pos_weight=weights)
        guess = logits.detach() > 0
        truth = target > 0.5
        right = (guess == truth).float().flatten(1).mean(1)
        counts = {"both": guess & truth, "guessed": guess, "wanted": truth}
        totals = {name: own.sum() for name, own in counts.items()}
        outcome = Outcome(loss, {"accuracy": right}, totals=totals)
        if not model.training:
            outcome.predictions = (logits.sigmoid(), truth.long())
        return outcome

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        return ClassProbabilities(scores.predicted(model, batch, self.inputs).float().sigmoid())

    def metrics(self, totals: Mapping[str, Tensor]) -> Mapping[str, float]:
        either = totals["guessed"] + totals["wanted"]
        return {"f1": (2 * totals["both"] / torch.clamp(either, min=1)).item()}
