import pytest
import torch

from framework.augment.mixup import Mixup
from framework.errors import ConfigError
from framework.order.draws import draws

IMAGE = torch.randint(
    0, 256, (6, 3, 4, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
BATCH = {"image": IMAGE, "label": torch.tensor([0, 1, 2, 2, 1, 0])}
NUMBERS = draws(torch.arange(6), 0, 0, 2)


def mixup(field="image", probability=1.0, num_classes=3, alpha=0.7):
    return Mixup(field, "label", num_classes, alpha, probability)


def test_images_and_labels_are_blended_by_the_same_share():
    result = mixup()(BATCH, NUMBERS)
    share = mixup().curve(NUMBERS[:, 1])
    for i in range(6):
        image = share[i] * IMAGE[i] / 255 + (1 - share[i]) * IMAGE[i - 1] / 255
        torch.testing.assert_close(result["image"][i], image)
        label = torch.zeros(3)
        label[BATCH["label"][i]] += share[i]
        label[BATCH["label"][i - 1]] += 1 - share[i]
        torch.testing.assert_close(result["label"][i], label)


def test_shares_add_up_to_one():
    assert torch.allclose(mixup()(BATCH, NUMBERS)["label"].sum(1), torch.ones(6))


def test_as_many_as_the_probability_says_are_blended():
    many = {"image": torch.rand(1000, 1, 1, 1), "label": torch.arange(1000) % 3}
    result = mixup(probability=0.3)(many, draws(torch.arange(1000), 0, 0, 2))
    assert 600 < int((result["image"] == many["image"]).sum()) < 800


def test_a_record_alone_stays_itself():
    result = mixup()({name: values[:1] for name, values in BATCH.items()}, NUMBERS[:1])
    torch.testing.assert_close(result["image"], IMAGE[:1] / 255)
    torch.testing.assert_close(result["label"], torch.tensor([[1.0, 0.0, 0.0]]))


def test_outside_training_images_are_of_the_same_kind_and_labels_are_classes():
    result = mixup()(BATCH, None)
    torch.testing.assert_close(result["image"], IMAGE / 255)
    assert result["label"] is BATCH["label"]


def test_targets_that_are_numbers_are_blended_as_they_are():
    batch = {"image": IMAGE, "label": torch.rand(6, 1, 2)}
    share = mixup().curve(NUMBERS[:, 1]).view(6, 1, 1)
    expected = share * batch["label"] + (1 - share) * batch["label"].roll(1, 0)
    torch.testing.assert_close(mixup(num_classes=None)(batch, NUMBERS)["label"], expected)


def test_several_fields_are_blended_alike():
    result = mixup(["blurry", "sharp"])(
        {"blurry": IMAGE, "sharp": IMAGE.clone(), "label": BATCH["label"]}, NUMBERS
    )
    assert torch.equal(result["blurry"], result["sharp"])
    assert not torch.equal(result["sharp"], IMAGE)


def test_classes_without_their_number_are_an_error_that_says_so():
    with pytest.raises(ConfigError, match=r"C133.*num_classes"):
        mixup(num_classes=None)(BATCH, NUMBERS)


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"alpha": -1.0}, {"probability": 1.5}])
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        mixup(**wrong)
