import copy

import torch
from torch import nn

from framework.average import Average


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def shifted(model, by):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by)
    return model


def test_it_starts_as_a_copy_that_needs_no_gradients():
    model = make()
    average = Average(model, 0.9)
    assert all(map(torch.equal, average.model.parameters(), model.parameters()))
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_update_keeps_the_decay_s_share_of_the_old():
    model = make()
    old = copy.deepcopy(model)
    average = Average(model, 0.75)
    average.update(shifted(model, 4.0))
    for mine, before in zip(average.model.parameters(), old.parameters(), strict=True):
        torch.testing.assert_close(mine, before + 1.0)


def test_many_updates_come_to_the_weights():
    model = make()
    average = Average(model, 0.5)
    shifted(model, 1.0)
    for _ in range(40):
        average.update(model)
    torch.testing.assert_close(list(average.model.parameters()), [p.detach() for p in model.parameters()])


def test_buffers_are_copied():
    model = make()
    average = Average(model, 0.9)
    model(torch.randn(8, 3))
    average.update(model)
    assert all(map(torch.equal, average.model.buffers(), model.buffers()))
    assert int(average.model[1].num_batches_tracked) == 1


def test_an_update_does_not_touch_the_model():
    model = make()
    average = Average(shifted(model, 1.0), 0.9)
    before = copy.deepcopy(model.state_dict())
    average.update(model)
    shifted(average.model, 1.0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_its_state_has_the_plain_names_and_comes_back():
    model = make()
    average = Average(model, 0.9)
    average.update(shifted(model, 1.0))
    other = Average(make(), 0.9)
    other.load_state_dict(average.state_dict())
    assert list(average.state_dict()) == list(model.state_dict())
    assert all(map(torch.equal, other.model.parameters(), average.model.parameters()))
