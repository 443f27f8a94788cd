"""Try advice: alternate training steps of the present settings and of others."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from framework.commands.diagnose.measure_parts import Setting
from framework.measure.statistics import median, quartiles

NUM_WINDOWS = 4


@dataclass(frozen=True)
class Comparison:
    """Pairs of rates (records per second) of the present settings and of others."""

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        return [after / before for before, after in zip(self.before, self.after, strict=True)]

    @property
    def gain(self) -> float:
        """The median ratio."""
        return median(self.ratios)

    @property
    def spread(self) -> float:
        """Half the interquartile range of the ratios, or half the range of fewer than four."""
        ratios = self.ratios
        if len(ratios) < 4:
            return (max(ratios) - min(ratios)) / 2
        low, _, high = quartiles(ratios)
        return (high - low) / 2


def training_rate(setting: Setting, seconds: float, burn_in_s: float) -> float:
    """Return records per second of training, with newly built parts."""
    with closing(setting.probe(NUM_WINDOWS)) as probe:
        return probe.train(seconds, burn_in_s).records_per_s


def alternate(
    before: Setting, after: Setting, pairs: int, seconds: float, burn_in_s: float
) -> Comparison:
    """Run both settings ``pairs`` times in turn.

    Which setting goes first changes from pair to pair, so that drift favors neither.
    """
    settings = (before, after)
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            rates[side].append(training_rate(settings[side], seconds, burn_in_s))
    return Comparison(tuple(rates[0]), tuple(rates[1]))


def compare_each(
    before: Setting, others: Sequence[Setting], seconds: float, burn_in_s: float
) -> list[Comparison]:
    """Run each of ``others`` between two runs of the present settings."""
    comparisons: list[Comparison] = []
    last = training_rate(before, seconds, burn_in_s)
    for other in others:
        tried = training_rate(other, seconds, burn_in_s)
        now = training_rate(before, seconds, burn_in_s)
        comparisons.append(Comparison((last, now), (tried, tried)))
        last = now
    return comparisons
