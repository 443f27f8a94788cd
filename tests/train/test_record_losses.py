"""Losses of single records from outputs that are kept."""

import torch
from torch import nn

from framework.objective.classify import Classify
from framework.train.parts import GivenOutputs, OutputRecorder, record_losses


class Net(nn.Module):
    name = "net"

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x.flatten(1))


def batch_of(count):
    images = torch.rand(count, 1, 2, 2)
    return {"index": torch.arange(count), "image": images, "label": torch.arange(count) % 3}


def test_the_losses_of_records_have_the_mean_of_the_batch():
    net, batch = Net().eval(), batch_of(5)
    recorder = OutputRecorder(net).eval()
    objective = Classify("image", "label", 0.0, tta="mirror_translate")
    loss = objective(recorder, batch).loss
    calls = net.calls
    losses = record_losses(objective, recorder.outputs, batch)
    assert torch.allclose(losses.mean(), loss.double(), atol=1e-6)
    assert net.calls == calls  # the model did not run again


def test_a_replay_cuts_what_has_a_row_per_record():
    output = (torch.arange(6).view(3, 2), torch.tensor(7.0))
    rows, scalar = GivenOutputs([output], 3, record=1)()
    assert rows.tolist() == [[2, 3]]
    assert scalar == 7
