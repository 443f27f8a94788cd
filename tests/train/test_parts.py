"""The record of parts that a Trainer runs with."""

from dataclasses import FrozenInstanceError

import pytest

from framework.train.parts import never
from tests.fakes import make_trainer


def test_parts_cannot_be_replaced():
    trainer = make_trainer()
    with pytest.raises(FrozenInstanceError):
        trainer.parts.val = None


def test_without_a_stop_a_run_goes_to_its_end():
    trainer = make_trainer(epochs=2)
    assert trainer.parts.stop is never
    trainer.fit()
    assert (trainer.progress.epoch, trainer.stopped) == (2, False)
