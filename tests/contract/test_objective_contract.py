import itertools
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from framework.contracts.batch import num_records
from framework.objective import distill, focal, multilabel, recognize, regress, restore, segment
from framework.objective.classify import Classify
from framework.train.metrics import PassPlace, PassResults

CLASSES = {
    "image": torch.randn(8, 3, generator=torch.Generator().manual_seed(0)),
    "label": torch.arange(8) % 3,
}
LABELS = {"image": CLASSES["image"], "labels": torch.arange(8 * 3).view(8, 3) % 2}
NUMBERS = {"image": CLASSES["image"], "target": CLASSES["image"].flip(0)}
LINES = {
    "image": torch.randn(8, 9, 3, generator=torch.Generator().manual_seed(0)),
    "image_length": torch.arange(8) % 3 + 7,
    "text": ["a", "b", "ab", "ba", "aba", "abab", "", "bb"],
}
MAPS = {
    "image": torch.randn(8, 3, 4, 3, generator=torch.Generator().manual_seed(0)),
    "mask": torch.arange(8 * 4 * 3, dtype=torch.uint8).view(8, 1, 4, 3) % 3,
}
KINDS = {
    "classify": (Classify("image", "label", 0.0), CLASSES),
    "classify, smoothed": (Classify("image", "label", 0.1), CLASSES),
    "classify, smoothed, several views": (Classify("image", "label", 0.1, "mirror"), CLASSES),
    "classify, weighted": (Classify("image", "label", 0.1, "none", [1, 2, 0.5]), CLASSES),
    "focal": (focal.Focal("image", "label", 2.0, [1, 2, 0.5]), CLASSES),
    "multilabel": (multilabel.Multilabel("image", "labels"), LABELS),
    "distill": (distill.Distill("image", "label", nn.Linear(3, 3), None, 0.5, 2.0), CLASSES),
    "regress, squared": (regress.Regress("image", "target", "mse"), NUMBERS),
    "regress, absolute": (regress.Regress("image", "target", "l1"), NUMBERS),
    "restore": (restore.Restore("image", "target", "l1", 1.0), NUMBERS),
    "recognize": (recognize.Recognize(["image", "image_length"], "text", "ab"), LINES),
    "segment": (segment.Segment("image", "mask"), MAPS),
    "segment, Dice": (segment.Segment("image", "mask", dice=0.5, ignore=2), MAPS),
}
every = pytest.mark.parametrize(("objective", "batch"), KINDS.values(), ids=KINDS)


class Net(nn.Linear):
    """Returns further inputs, such as lengths, as they are."""

    def forward(self, image, *others):
        logits = super().forward(image)
        return (logits, *others) if others else logits


def model(batch):
    """Return a net in training mode. Texts are compared in validation only."""
    torch.manual_seed(0)
    return Net(3, 3).train("text" not in batch)


def part(batch, start, stop):
    return {name: values[start:stop] for name, values in batch.items()}


def counted(result, batch):
    return num_records(batch) if result.count is None else int(result.count)


def weighed(losses, counts):
    pairs = zip(losses, counts, strict=True)
    return sum(loss.item() * count for loss, count in pairs) / sum(counts)


def means(objective, result, batch):
    """Return loss and metrics, as a report has them."""
    pass_results = PassResults(objective)
    pass_results.add(result, num_records(batch), 1.0, PassPlace(1, None))
    return pass_results.results(lambda sums: sums).means


@every
def test_the_loss_is_one_number_and_sums_are_one_or_one_per_record(objective, batch):
    before = deepcopy(batch)
    few, many = (objective(model(batch), part(batch, 0, stop)) for stop in (1, 8))
    assert many.loss.dim() == 0
    assert all(value.dim() == 0 or len(value) == 8 for value in many.sums.values())
    assert few.sums.keys() == many.sums.keys()
    shapes = [{name: t.shape for name, t in result.totals.items()} for result in (few, many)]
    assert shapes[0] == shapes[1]
    assert batch.keys() == before.keys()
    assert all(np.array_equal(batch[name], values) for name, values in before.items())


@every
def test_every_metric_has_a_direction(objective, batch):
    result = objective(model(batch), batch)
    known = {"input_psnr", *result.losses}  # one never changes, and of losses lower is better
    low = dict.fromkeys(means(objective, result, batch), 0.0)
    for name in low.keys() - known:
        high = {**low, name: 1.0}
        assert objective.better(high, low) != objective.better(low, high), name


@every
def test_a_batch_is_worth_its_parts(objective, batch):
    net = model(batch)
    whole = objective(net, batch)
    for cut in (1, 4):
        spans = ((0, cut), (cut, 8))
        parts = [objective(net, part(batch, *span)) for span in spans]
        counts = [counted(own, part(batch, *span)) for own, span in zip(parts, spans, strict=True)]
        loss = weighed([result.loss for result in parts], counts)
        assert whole.loss.item() == pytest.approx(loss, rel=1e-5)
        for name, value in whole.sums.items():
            parted = sum(result.sums[name].sum().item() for result in parts)
            assert value.sum().item() == pytest.approx(parted, rel=1e-5)
        for name, value in whole.losses.items():
            parted = weighed([result.losses[name] for result in parts], counts)
            assert value.item() == pytest.approx(parted, rel=1e-5)
        for name, value in whole.totals.items():
            assert torch.equal(value, sum(result.totals[name] for result in parts))


@every
def test_the_loss_can_be_made_small(objective, batch):
    net = model(batch)
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.05), []
    for _ in range(10):
        optimizer.zero_grad()
        losses.append(objective(net, batch).loss)
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]


@every
def test_no_result_is_better_than_itself_and_of_two_one_is_better(objective, batch):
    spans = ((0, 2), (0, 8), (3, 7))
    result = [
        means(objective, objective(model(batch), part(batch, *span)), part(batch, *span))
        for span in spans
    ]
    assert not any(objective.better(entry, entry) for entry in result)
    for entry, other in itertools.combinations(result, 2):
        assert objective.better(entry, other) is not objective.better(other, entry)
