"""How events become spans."""

import torch
from torch import nn

from framework.commands.watch.step_recorder import StepRecorder

BATCH = (torch.zeros(4, 3), torch.zeros(4))


def step(recorder, module):
    recorder.asks(None)
    recorder.gets(BATCH)
    recorder.calls(module, (BATCH[0],))
    recorder.begins_backward()
    recorder.ends_backward()
    recorder.ends_optimizer()


def test_the_first_step_is_not_measured():
    recorder = StepRecorder()
    for _ in range(3):
        step(recorder, nn.Linear(3, 2))
    recorder.end()
    assert (recorder.counts.steps, recorder.counts.records) == (2, 8)
    assert recorder.counts.first_s > 0
    assert set(recorder.spans()) >= {"wait", "copy", "forward", "backward", "optimizer", "other"}


def test_the_records_of_a_step_that_does_not_end_are_not_counted():
    recorder = StepRecorder()
    for _ in range(3):
        step(recorder, nn.Linear(3, 2))
    recorder.asks(None)
    recorder.gets(BATCH)
    recorder.end()
    assert (recorder.counts.steps, recorder.counts.records) == (2, 8)


def test_steps_without_an_optimizer_of_torch_end_with_backward():
    recorder = StepRecorder()
    for _ in range(3):
        recorder.asks(None)
        recorder.gets(BATCH)
        recorder.begins_backward()
        recorder.ends_backward()
    recorder.end()
    assert recorder.counts.steps == 2


def test_a_model_that_trains_in_eval_mode_is_still_training():
    recorder = StepRecorder()
    model = nn.Linear(3, 2).eval()
    for _ in range(5):
        step(recorder, model)
    recorder.end()
    assert recorder.counts.steps == 4
    assert recorder.spans()["wait"].num_steps >= 3
