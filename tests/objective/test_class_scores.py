import pytest
import torch

from framework.errors import ConfigError
from framework.objective.class_scores import ClassObjective, ClassWeights, correct_guesses

LOGITS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 2, 1, 0])


def test_without_weights_the_loss_is_torch_s_own():
    expected = torch.nn.functional.cross_entropy(LOGITS, LABELS, label_smoothing=0.1)
    assert torch.equal(ClassWeights(None).cross_entropy(LOGITS, LABELS, 0.1), expected)


def test_a_record_weighs_as_much_as_its_class():
    weights = torch.tensor([1.0, 2.0, 0.5])
    losses = -LOGITS.log_softmax(1)[torch.arange(6), LABELS]
    loss = ClassWeights([1, 2, 0.5]).cross_entropy(LOGITS, LABELS, 0.0)
    torch.testing.assert_close(loss, (losses * weights[LABELS]).mean())


def test_weights_work_on_shares_of_classes():
    shares = torch.nn.functional.one_hot(LABELS, 3).float()
    own = ClassWeights([1, 2, 0.5])
    loss = own.cross_entropy(LOGITS, shares, 0.0)
    torch.testing.assert_close(loss, own.cross_entropy(LOGITS, LABELS, 0.0))


def test_more_weights_than_the_model_has_classes_are_refused():
    with pytest.raises(ConfigError, match=r"C316.*length 4, the model's output 3; give a weight"):
        ClassWeights([1, 2, 3, 4]).cross_entropy(LOGITS, LABELS, 0.0)


@pytest.mark.parametrize("values", ["balance", [], [1, -1], [1, float("inf")], [True], ["a"]])
def test_what_is_no_list_of_weights_is_refused(values):
    with pytest.raises(ConfigError, match=r"C316.*objective.class_weights"):
        ClassWeights(values)


def test_a_guess_is_right_if_its_class_is_the_largest():
    guess = LOGITS.argmax(1)
    assert correct_guesses(LOGITS, guess).all()
    assert correct_guesses(LOGITS, torch.nn.functional.one_hot(guess, 3).float()).all()
    assert not correct_guesses(LOGITS, (guess + 1) % 3).any()


def test_the_more_accurate_is_better_and_then_the_one_with_the_lower_loss():
    better = ClassObjective().better
    assert better({"accuracy": 0.9, "loss": 2.0}, {"accuracy": 0.8, "loss": 1.0})
    assert better({"accuracy": 0.9, "loss": 1.0}, {"accuracy": 0.9, "loss": 2.0})
    assert not better({"accuracy": 0.9, "loss": 2.0}, {"accuracy": 0.9, "loss": 2.0})
