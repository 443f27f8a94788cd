import copy

import pytest
import torch
from torch import nn

from framework.train.ema import Average


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def shifted(model, by):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)
    return model


def values(average):
    """Return the averaged weights without the buffers."""
    names = [name for name, _ in average.model.named_parameters()]
    return [average.state_dict()[name] for name in names]


def test_it_starts_as_a_copy_that_needs_no_gradients():
    model = make()
    average = Average(model, 0.9)
    assert all(map(torch.equal, values(average), model.parameters()))
    assert not any(value.requires_grad for value in values(average))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_update_keeps_the_decay_s_share_of_the_old():
    model = make()
    old = copy.deepcopy(model)
    average = Average(model, 0.75)
    shifted(model, 4.0)
    average.update()
    for mine, before in zip(values(average), old.parameters(), strict=True):
        torch.testing.assert_close(mine, before + 1.0)


def test_many_updates_come_to_the_weights():
    model = make()
    average = Average(model, 0.5)
    shifted(model, 1.0)
    for _ in range(40):
        average.update()
    torch.testing.assert_close(values(average), [p.detach() for p in model.parameters()])


def test_buffers_are_copied():
    model = make()
    average = Average(model, 0.9)
    model(torch.randn(8, 3))
    average.update()
    model(torch.randn(8, 3))
    assert int(average.state_dict()["1.num_batches_tracked"]) == 1
    assert int(model[1].num_batches_tracked) == 2


def test_an_update_does_not_touch_the_model():
    model = shifted(make(), 1.0)
    before = copy.deepcopy(model.state_dict())
    Average(model, 0.9).update()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_inside_applied_the_model_has_the_average_and_then_its_own_again():
    model = make()
    average = Average(model, 0.5)
    shifted(model, 2.0)
    own, kept = copy.deepcopy(model.state_dict()), copy.deepcopy(average.state_dict())
    with average.applied():
        assert all(torch.equal(kept[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(own[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(kept[name], value) for name, value in average.state_dict().items())


def test_its_state_has_the_plain_names_and_comes_back():
    model = make()
    average = Average(model, 0.9)
    shifted(model, 1.0)
    average.update()
    other = Average(make(), 0.9)
    other.load_state_dict(average.state_dict())
    assert list(average.state_dict()) == list(model.state_dict())
    assert all(map(torch.equal, values(other), values(average)))


def test_lookahead_equals_a_sequence_by_hand():
    """Each second step keeps 0.5**2 of the average, and copies it into the weights."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 8.0)
    average = Average(model, 0.5, every=2, lookahead=True)
    seen = []
    for step in range(1, 5):
        shifted(model, 4.0)
        average.update_after(step, 4)
        seen.append((model.weight.item(), values(average)[0].item()))
    # 16 and 8 make 0.75 * 16 + 0.25 * 8 = 14; 22 and 14 make 20
    assert seen == [(12.0, 8.0), (14.0, 14.0), (18.0, 14.0), (20.0, 20.0)]


def test_a_ramp_follows_the_weights_at_first():
    """What an update keeps is 0.5 * (step / 4)**3, as published with 0.95**5."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = Average(model, 0.5, ramp=3.0)
    expected = 0.0
    for step in range(1, 5):
        shifted(model, 1.0)
        average.update_after(step, 4)
        kept = 0.5 * (step / 4) ** 3
        expected = kept * expected + (1 - kept) * step
        assert values(average)[0].item() == pytest.approx(expected)


def test_without_lookahead_the_weights_go_their_own_way():
    model = nn.Linear(1, 1, bias=False)
    average = Average(model, 0.5, every=2, ramp=1.0)
    before = model.weight.item()
    for step in (1, 2, 3):
        average.update_after(step, 3)
        shifted(model, 1.0)
    assert model.weight.item() == pytest.approx(before + 3)


def test_lookahead_averages_statistics_too_and_copies_counts():
    model = make()
    average = Average(model, 0.5, lookahead=True)
    model(torch.randn(8, 3))
    mean = model[1].running_mean.clone()
    average.update()
    torch.testing.assert_close(model[1].running_mean, mean / 2)
    torch.testing.assert_close(average.state_dict()["1.running_mean"], mean / 2)
    assert int(average.state_dict()["1.num_batches_tracked"]) == 1


@pytest.mark.parametrize(
    ("words", "constant"),
    [({}, True), ({"lookahead": True}, True), ({"every": 2}, False), ({"ramp": 1.0}, False)],
)
def test_it_says_whether_a_graph_can_repeat_its_update(words, constant):
    assert Average(make(), 0.5, **words).is_constant == constant
