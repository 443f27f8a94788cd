import pytest
import torch
from paceline_examples.detect_net import STRIDE
from paceline_examples.detect_objective import Detect, suggested
from torch import nn

BOXES = torch.tensor([[[4.0, 8, 20, 20], [30, 20, 40, 44]], [[8.0, 8, 24, 40], [0, 0, 0, 0]]])
BATCH = {
    "image": torch.zeros(2, 3, 48, 48),
    "boxes": BOXES,
    "label": torch.tensor([[1, 0], [2, 0]]),
}


class Fixed(nn.Module):
    """A model that returns its weights, whatever the images are."""

    def __init__(self, maps):
        super().__init__()
        self.maps = nn.Parameter(maps)

    def forward(self, image):
        return self.maps[: len(image)]


def perfect():
    """Return maps that say exactly what the batch holds."""
    maps = torch.zeros(2, 7, 12, 12)
    maps[:, :3] = -20.0
    for image, place in ((0, 0), (0, 1), (1, 0)):
        left, top, right, bottom = BOXES[image, place] / STRIDE
        x, y = int((left + right) / 2), int((top + bottom) / 2)
        maps[image, BATCH["label"][image, place], y, x] = 20.0
        for row, column in ((y, x), (y, x + 1), (y + 1, x), (y, x - 1), (y - 1, x)):
            sides = [column + 0.5 - left, row + 0.5 - top, right - column - 0.5, bottom - row - 0.5]
            maps[image, 3:, row, column] = torch.stack(sides).clamp(min=1e-3).log()
    return maps


def detect(maps, batch=BATCH, training=False):
    objective, model = Detect("image", "boxes", "label"), Fixed(maps).train(training)
    outcome = objective(model, batch)
    return outcome, objective, model


def metrics(maps, batch=BATCH):
    outcome, objective, _ = detect(maps, batch)
    return objective.metrics({name: value.double() for name, value in outcome.totals.items()})


def test_boxes_are_read_from_the_peaks_best_first():
    maps = perfect()
    maps[0, 0].clamp_(max=3.0)
    guess, scores = suggested(maps)
    assert (scores[:, :2] > 0.9).tolist() == [[True, True], [True, False]]
    torch.testing.assert_close(guess.corners[0, :2], BOXES[0])
    assert guess.classes[0, :2].tolist() == [1, 0]


def test_perfect_maps_have_a_precision_of_1_and_others_have_less():
    assert metrics(perfect()) == {"map": 1.0, "map50": 1.0}
    wider = perfect()
    wider[:, 3:] += 0.2
    assert metrics(wider)["map"] < metrics(wider)["map50"] == 1.0
    assert metrics(torch.zeros(2, 7, 12, 12))["map50"] < 0.1


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_images_without_boxes_have_a_loss_and_gradients(rows):
    nothing = {"boxes": torch.zeros(2, rows, 4), "label": torch.zeros(2, rows, dtype=torch.int64)}
    outcome, _, model = detect(torch.zeros(2, 7, 12, 12), {**BATCH, **nothing})
    outcome.loss.backward()
    assert outcome.loss.item() > 0
    assert model.maps.grad[:, :3].abs().sum() > 0
    assert not model.maps.grad[:, 3:].any()


def test_rows_of_padding_change_nothing():
    more = {
        "boxes": nn.functional.pad(BOXES, (0, 0, 0, 3)),
        "label": nn.functional.pad(BATCH["label"], (0, 3)),
    }
    maps = torch.randn(2, 7, 12, 12, generator=torch.Generator().manual_seed(0))
    some, padded = detect(maps)[0], detect(maps, {**BATCH, **more})[0]
    assert some.loss == padded.loss
    assert all(torch.equal(value, padded.totals[name]) for name, value in some.totals.items())


def test_the_loss_of_a_batch_is_the_mean_of_its_images():
    maps = torch.randn(2, 7, 12, 12, generator=torch.Generator().manual_seed(1))
    alone = [
        detect(maps[i : i + 1], {name: values[i : i + 1] for name, values in BATCH.items()})[0]
        for i in range(2)
    ]
    assert detect(maps)[0].loss.item() == pytest.approx(
        sum(outcome.loss.item() for outcome in alone) / 2, rel=1e-6
    )


def test_gradients_lead_to_the_boxes():
    torch.manual_seed(0)
    objective, model = Detect("image", "boxes", "label"), Fixed(torch.randn(2, 7, 12, 12) - 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.2)
    for _ in range(150):
        optimizer.zero_grad()
        objective(model, BATCH).loss.backward()
        optimizer.step()
    assert metrics(model.maps.detach())["map"] > 0.9
