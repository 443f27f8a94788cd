"""Painted boxes, boxes of other records, blends of records, and the distributions behind them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from framework.augment import cutmix, mixup_cutmix, random_erasing
from framework.augment.mixup import Mixup, beta
from framework.order.draws import draws

COUNT, HEIGHT, WIDTH = 300, 20, 30
FLAT = torch.full((COUNT, 3, HEIGHT, WIDTH), 9, dtype=torch.uint8)
NUMBERS = draws(torch.arange(COUNT), 0, 0, 5)


def erased(numbers=NUMBERS, image=FLAT, **options):
    options = {"probability": 1.0, "scale": (0.02, 0.33), "ratio": (0.3, 3.3), **options}
    options.setdefault("value", (0.0,))
    return random_erasing.RandomErasing("image", **options)({"image": image}, numbers)["image"]


def slow_box(numbers):
    """Return which pixels of one record are painted (bool [HEIGHT, WIDTH]), in plain numbers."""
    area = (0.02 + numbers[1] * 0.31) * HEIGHT * WIDTH
    ratio = 0.3 * (3.3 / 0.3) ** numbers[2]
    tall = min(HEIGHT, max(1, round(math.sqrt(area * ratio))))
    wide = min(WIDTH, max(1, round(math.sqrt(area / ratio))))
    top, left = int(numbers[3] * (HEIGHT - tall + 1)), int(numbers[4] * (WIDTH - wide + 1))
    painted = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    painted[top : top + tall, left : left + wide] = True
    return painted


def test_every_box_is_that_of_plain_numbers():
    result = erased()
    pairs = zip(result, map(slow_box, NUMBERS.tolist()), strict=True)
    same = [torch.equal(image[0] == 0, painted) for image, painted in pairs]
    assert sum(same) >= COUNT - 2  # a side that is half a pixel more may be rounded the other way
    assert torch.equal(result[:, 0], result[:, 2])


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(torch.uint8, (1, 2, 3)), (torch.float32, (0.5, 2.5, 3)), (torch.uint16, (65535, 2, 3))],
    ids=["bytes", "floats", "16 bits"],
)
def test_each_channel_has_its_paint(dtype, value):
    result = erased(image=FLAT.to(dtype), value=value).float()
    assert [set(result[:, n].unique().tolist()) for n in range(3)] == [{v, 9} for v in value]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": (0.5, 0.1)}, "scale"),
        ({"ratio": (0.0, 1.0)}, "ratio"),
        ({"value": (0.5,)}, "no pixel from 0 to 255"),
        ({"value": (65536.0,), "image": FLAT.to(torch.uint16)}, "no pixel from 0 to 65535"),
        ({"value": (1.0, 2.0)}, r"does not fit 3 channel\(s\): give one number"),
    ],
    ids=["scale", "ratio", "a fraction", "too white", "two channels"],
)
def test_boxes_and_paint_that_cannot_be_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        erased(**options)


NUMBERED = torch.arange(40, dtype=torch.uint8).view(-1, 1, 1, 1).expand(40, 3, 9, 12).contiguous()
BATCH = {"image": NUMBERED, "label": torch.arange(40) % 3}


def cut(numbers=NUMBERS[:40, :4], image=NUMBERED, alpha=1.0, probability=1.0):
    batch = {**BATCH, "image": image}
    return cutmix.CutMix("image", "label", 3, alpha, probability)(batch, numbers)


def test_each_image_gets_a_box_of_its_partner():
    mixed = cut()["image"]
    for number, (_, share, down, right) in enumerate(NUMBERS[:40, :4].tolist()):
        half = 0.5 * math.sqrt(1 - share)
        row, column, tall, wide = int(down * 9), int(right * 12), int(half * 9), int(half * 12)
        expected = torch.full((3, 9, 12), number)
        rows = slice(max(0, row - tall), row + tall)
        expected[:, rows, max(0, column - wide) : column + wide] = (number - 1) % 40
        assert torch.equal(mixed[number].long(), expected)


def test_labels_are_blended_by_the_area_of_the_box():
    mixed = cut()
    for number in range(40):
        own = float((mixed["image"][number] == number).float().mean())
        expected = torch.zeros(3)
        expected[BATCH["label"][number]] += own
        expected[BATCH["label"][number - 1]] += 1 - own
        torch.testing.assert_close(mixed["label"][number], expected)


IMAGE = torch.randint(
    0, 256, (6, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
SIX = {"image": IMAGE, "label": torch.tensor([0, 1, 2, 2, 1, 0])}


def mixup(probability=1.0, num_classes=3, alpha=0.7):
    return Mixup("image", "label", num_classes, alpha, probability)


def test_a_label_that_does_not_count_has_no_share():
    labels = torch.tensor([0, -100, 2, -100, -100, 1])
    blended = mixup()({**SIX, "label": labels}, NUMBERS[:6, :2])["label"]
    shares = mixup().curve(NUMBERS[:6, 1])
    expected = torch.zeros(6, 3)
    for number, share in enumerate(shares):
        for label, part in ((labels[number], share), (labels[number - 1], 1 - share)):
            if label >= 0:
                expected[number, label] += part
    torch.testing.assert_close(blended, expected)


def test_images_and_labels_are_blended_by_the_same_share():
    numbers = NUMBERS[:6, :2]
    result, share = mixup()(SIX, numbers), mixup().curve(numbers[:, 1])
    for number in range(6):
        image = share[number] * IMAGE[number] / 255 + (1 - share[number]) * IMAGE[number - 1] / 255
        torch.testing.assert_close(result["image"][number], image)
        label = torch.zeros(3)
        label[SIX["label"][number]] += share[number]
        label[SIX["label"][number - 1]] += 1 - share[number]
        torch.testing.assert_close(result["label"][number], label)


def test_outside_training_images_become_floats_and_labels_stay():
    result = mixup()(SIX, None)
    torch.testing.assert_close(result["image"], IMAGE / 255)
    assert result["label"] is SIX["label"]


def mixed_or_cut(image=IMAGE, draws=NUMBERS[:6], **options):
    keys = {"mixup_alpha": 0.7, "cutmix_alpha": 1.0, "probability": 0.8, "cutmix_probability": 0.4}
    augment = mixup_cutmix.MixupCutMix("image", "label", 3, **{**keys, **options})
    return augment({**SIX, "image": image}, draws)


def test_each_record_is_mixed_or_cut_or_left_by_its_own_numbers():
    numbers = draws(torch.arange(6), 0, 7, 5)
    both = mixed_or_cut(draws=numbers)
    mixed = Mixup("image", "label", 3, 0.7, 1.0)(SIX, numbers[:, [0, 2]])
    unit_images = {**SIX, "image": IMAGE / 255}
    cut = cutmix.CutMix("image", "label", 3, 1.0, 1.0)(unit_images, numbers[:, [0, 2, 3, 4]])
    kinds = []
    for number, (blends, cuts, *_) in enumerate(numbers.tolist()):
        expected = mixed_or_cut(draws=None)["image"][number], torch.eye(3)[SIX["label"][number]]
        kinds.append("left")
        if blends < 0.8:
            kinds[-1], chosen = ("cut", cut) if cuts < 0.4 else ("mixed", mixed)
            expected = chosen["image"][number], chosen["label"][number]
        torch.testing.assert_close((both["image"][number], both["label"][number]), expected)
    assert {*kinds} == {"left", "cut", "mixed"}


def test_chances_of_0_and_1_leave_one_of_the_two():
    assert torch.equal(
        mixed_or_cut(probability=1.0, cutmix_probability=0.0)["image"],
        mixup()(SIX, NUMBERS[:6, [0, 2]])["image"],
    )
    with pytest.raises(ValueError, match="cutmix_probability"):
        mixed_or_cut(cutmix_probability=1.5)


BELOW_ONE = 1 - 2**-24
UNIFORM = draws(torch.arange(20_000), 0, 0, 1)[:, 0]


@given(st.floats(0.05, 20))
def test_beta_is_the_quantile_function_of_scipy(alpha):
    expected = torch.from_numpy(stats.beta.ppf(UNIFORM[:500].double().numpy(), alpha, alpha))
    assert torch.allclose(beta(alpha)(UNIFORM[:500]).double(), expected, atol=2e-3)
    low, middle, high = beta(alpha)(torch.tensor([0.0, 0.5, BELOW_ONE])).tolist()
    assert (low, middle) == (0, 0.5)
    assert 0.5 < high <= 1
