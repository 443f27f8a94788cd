"""What captured steps read and leave on the device, each in a slot of its own.

A captured step repeats the same kernels on the same memory. A counter on the device tells it which
step it is. It reads that step's learning rates from a table, and leaves its loss and sums in that
step's slot. So the host launches nothing for them, and a report reads many steps at once.
"""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from framework.contracts.training import Outcome

NUM_SLOTS = 256  # steps after which the table is filled again
LOSS, COUNT = "", "\n"  # the loss and the count among the sums, which have other names


@final
class StepSlots:
    """Slots of ``NUM_SLOTS`` steps.

    The host calls ``make_slots`` once and ``next_step`` before each captured step. ``begin`` and
    ``end`` are captured.

    Args:
        rates: Where the optimizer reads its learning rates: float32 tensors without dimensions.
        rates_of: Returns the rates of a step, from its number and that of the last step.
    """

    def __init__(self, rates: list[Tensor], rates_of: Callable[[int, int], list[float]]) -> None:
        self._rates = rates
        self._rates_of = rates_of
        self._table = torch.zeros(NUM_SLOTS, len(rates), device=rates[0].device)
        self._place = torch.zeros(1, dtype=torch.int64, device=rates[0].device)  # the counter
        self._next_place = 0  # its value
        self._first_step = 0  # of the table
        self._last_step = -1  # of the training
        self._memory: dict[str, Tensor] = {}  # the slots of each sum, and of the loss
        self._slots: list[Outcome] = []
        self._given: list[tuple[int, Outcome]] = []  # somebody may still read these
        # Totals and arrays, which may be large, have no slots: they are added up before the next
        # step, in the order of the stream.
        self._totals: dict[str, Tensor] = {}
        self._arrays: dict[str, Tensor] = {}

    def make_slots(self, outcome: Outcome) -> None:
        """Make slots for outcomes like this one. Sums on the host are constants of a graph."""
        arrays = {name: value for name, value in outcome.sums.items() if value.dim() > 1}
        self._arrays = {name: torch.zeros_like(value) for name, value in arrays.items()}
        for name, value in _values(outcome).items():
            if name not in arrays and value.device == self._place.device:
                shape = (NUM_SLOTS, *value.shape)
                self._memory[name] = torch.zeros(shape, dtype=value.dtype, device=value.device)
        self._slots = _outcomes(self._memory, outcome)
        self._totals = {name: torch.zeros_like(value) for name, value in outcome.totals.items()}

    def next_step(self, step: int, last_step: int) -> Outcome:
        """Return what the next captured step will leave. Its number is ``step``, from 0.

        Its totals stay as they are until the step after it.
        """
        place = step - self._first_step
        if last_step != self._last_step or not self._next_place <= place < NUM_SLOTS:
            self._fill(step, last_step)
            place = 0
        if place != self._next_place:
            self._place.fill_(place)
        self._next_place = place + 1
        slot = self._slots[place]
        sums = {**slot.sums, **self._arrays}
        outcome = Outcome(slot.loss, sums, slot.count, dict(self._totals))
        self._given.append((place, outcome))
        return outcome

    def forget_rates(self) -> None:
        """Ask for the rates anew before the next step, because the schedule has changed."""
        self._last_step = -1

    def begin(self) -> None:
        """Set the learning rates."""
        current = self._table.index_select(0, self._place).view(-1)
        torch._foreach_copy_(self._rates, list(current.unbind()))  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]

    def end(self, outcome: Outcome) -> None:
        """Keep what the step returned, and count it."""
        values = _values(outcome)
        for name, memory in self._memory.items():
            memory.index_copy_(0, self._place, values[name].detach().unsqueeze(0))
        for name, total in self._totals.items():
            total.copy_(outcome.totals[name].detach())
        for name, array in self._arrays.items():
            array.copy_(outcome.sums[name].detach())
        self._place.add_(1)

    def _fill(self, step: int, last_step: int) -> None:
        """Fill the table from ``step`` on, and let all slots be used again."""
        self._keep_given()
        num_steps = min(NUM_SLOTS, max(1, last_step - step))
        rows = [self._rates_of(step + number, last_step) for number in range(num_steps)]
        host = torch.tensor(rows, dtype=torch.float32)
        if self._table.device.type == "cuda":
            host = host.pin_memory()  # so that the copy does not wait for the device
        self._table[:num_steps].copy_(host, non_blocking=True)
        self._first_step = step
        self._last_step = last_step
        self._place.zero_()
        self._next_place = 0

    def _keep_given(self) -> None:
        """Move the outcomes that were given to memory of their own."""
        if not self._given:
            return
        memory = {name: slots.clone() for name, slots in self._memory.items()}
        kept = _outcomes(memory, self._given[0][1])
        for place, outcome in self._given:
            outcome.loss = kept[place].loss
            outcome.count = kept[place].count
            own = kept[place].sums
            outcome.sums.update({name: own[name] for name in own if name in outcome.sums})
        self._given = []


def _values(outcome: Outcome) -> dict[str, Tensor]:
    """Return what has a slot: the loss, the sums, and a count on the device."""
    values = {LOSS: outcome.loss, **outcome.sums}
    if isinstance(outcome.count, Tensor):
        values[COUNT] = outcome.count
    return values


def _outcomes(memory: dict[str, Tensor], like: Outcome) -> list[Outcome]:
    """Return an outcome for each slot. Its tensors are views of the memory."""
    views = {name: slots.unbind() for name, slots in memory.items()}
    losses = views.pop(LOSS)
    counts = views.pop(COUNT, None)
    outcomes: list[Outcome] = []
    for place, loss in enumerate(losses):
        sums = {name: slots[place] for name, slots in views.items()}
        count = like.count if counts is None else counts[place]
        outcomes.append(Outcome(loss, {**like.sums, **sums}, count))
    return outcomes
