import pytest
import torch

from framework.contracts.training import Outcome
from framework.train import step_slots
from framework.train.step_slots import StepSlots


@pytest.fixture(autouse=True)
def few_slots(monkeypatch):
    monkeypatch.setattr(step_slots, "NUM_SLOTS", 4)


def made(last_step=100):
    """Return a function that does one captured step.

    It returns the outcome, and the rates that the slots set.
    """
    rates = [torch.zeros(()), torch.zeros(())]
    slots = StepSlots(rates, lambda step, last: [step / 10, last - step])
    slots.make_slots(Outcome(torch.zeros(()), {"each": torch.zeros(3), "fixed": torch.ones(1)}, 3))

    def step(number, last_step=last_step):
        outcome = slots.next_step(number, last_step)
        slots.begin()
        read = [rate.item() for rate in rates]
        each = torch.tensor([number, number + 0.25, number + 0.5])
        slots.end(Outcome(torch.tensor(float(number)), {"each": each, "fixed": torch.ones(1)}, 3))
        return outcome, read

    return step


def value(outcome):
    return outcome.loss.item(), outcome.sums["each"].tolist(), outcome.count


def test_every_step_reads_its_own_rates():
    step = made()
    for number in range(11):
        assert step(number)[1] == pytest.approx([number / 10, 100 - number])


def test_every_outcome_stays_as_its_step_left_it():
    step = made()
    outcomes = [step(number)[0] for number in range(11)]
    assert [value(outcome) for outcome in outcomes] == [
        (number, [number, number + 0.25, number + 0.5], 3) for number in range(11)
    ]


def test_an_outcome_whose_loss_was_detached_stays_too():
    step = made()
    outcomes = []
    for number in range(9):
        outcome, _ = step(number)
        outcome.loss = outcome.loss.detach()  # as the tally does
        outcomes.append(outcome)
    assert [outcome.loss.item() for outcome in outcomes] == list(range(9))


def test_steps_between_that_were_not_captured_are_left_out():
    step = made()
    for number in (0, 1, 3, 9, 10):
        outcome, rates = step(number)
        assert (outcome.loss.item(), rates[0]) == (number, pytest.approx(number / 10))


def test_a_run_that_goes_back_uses_the_table_anew():
    step = made()
    before = [step(number)[0] for number in (5, 6)]
    again, rates = step(5)
    assert rates[0] == pytest.approx(0.5)
    assert [value(outcome)[0] for outcome in (*before, again)] == [5, 6, 5]


def test_another_end_of_the_training_means_other_rates():
    step = made()
    step(0)
    assert step(1, last_step=3)[1] == pytest.approx([0.1, 2])


def test_the_table_ends_with_the_training():
    asked = []
    rates = [torch.zeros(())]
    slots = StepSlots(rates, lambda step, last: asked.append(step) or [1.0])
    slots.make_slots(Outcome(torch.zeros(()), {}, 1))
    slots.next_step(8, 10)
    assert asked == [8, 9]


def test_totals_are_those_of_the_newest_step():
    slots = StepSlots([torch.zeros(())], lambda step, last: [1.0])
    slots.make_slots(Outcome(torch.zeros(()), {}, 1, {"hits": torch.zeros(2)}))
    for number in range(9):
        outcome = slots.next_step(number, 100)
        slots.end(Outcome(torch.zeros(()), {}, 1, {"hits": torch.tensor([1.0, number])}))
        assert outcome.totals["hits"].tolist() == [1, number]
        outcome.totals = {}  # as the tally does


def test_rates_are_asked_for_anew_when_the_schedule_has_changed():
    rates, factor = [torch.zeros(())], [1.0]
    slots = StepSlots(rates, lambda step, last: [factor[0] * step])
    slots.make_slots(Outcome(torch.zeros(()), {}, 1))

    def read(number):
        slots.next_step(number, 100)
        slots.begin()
        slots.end(Outcome(torch.zeros(()), {}, 1))
        return rates[0].item()

    assert read(1) == 1
    factor[0] = 10.0
    assert read(2) == 2
    slots.forget_rates()
    assert read(3) == 30


def test_arrays_have_no_slots_and_are_those_of_the_newest_step():
    slots = StepSlots([torch.zeros(())], lambda step, last: [0.0])
    slots.make_slots(Outcome(torch.zeros(()), {"n": torch.zeros(3), "x": torch.zeros(2, 2)}, 3))
    assert "x" not in slots._memory
    for number in range(9):
        outcome = slots.next_step(number, 100)
        slots.begin()
        array = torch.full((2, 2), float(number))
        slots.end(Outcome(torch.zeros(()), {"n": torch.zeros(3), "x": array}, 3))
        assert outcome.sums.pop("x").tolist() == array.tolist()  # as the tally takes it
        assert list(outcome.sums) == ["n"]
    slots.next_step(50, 100)  # which moves those that were given
    assert list(outcome.sums) == ["n"]
