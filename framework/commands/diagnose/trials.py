"""Advice tried: whole steps of the present settings and of others in turn, each time with parts made anew."""

from collections.abc import Sequence
from dataclasses import dataclass

from framework.commands.diagnose.measure_parts import Setting
from framework.commands.probe import Rate
from framework.measure.statistics import median, quartiles

NUM_WINDOWS = 4


@dataclass(frozen=True)
class Comparison:
    """Records per second of the present settings and of the others, pair by pair."""

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
        """Half the distance between the quartiles of the ratios; of fewer than four, half of all there is."""
        ratios = self.ratios
        if len(ratios) < 4:
            return (max(ratios) - min(ratios)) / 2
        low, _, high = quartiles(ratios)
        return (high - low) / 2


def whole(setting: Setting, seconds: float, burn_in_s: float) -> Rate:
    """Whole steps, by a Probe of their own."""
    probe = setting.probe(NUM_WINDOWS)
    try:
        return probe.train(seconds, burn_in_s)
    finally:
        probe.close()


def alternate(
    before: Setting, after: Setting, pairs: int, seconds: float, burn_in_s: float
) -> Comparison:
    """``pairs`` times both, in turn, the first one changing from pair to pair, so that a drift of the machine favors neither."""
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            rate = whole((before, after)[which], seconds, burn_in_s)
            rates[which].append(rate.records_per_s)
    return Comparison(tuple(rates[0]), tuple(rates[1]))


def beside(
    before: Setting, others: Sequence[Setting], seconds: float, burn_in_s: float
) -> list[Comparison]:
    """Each of ``others`` between two runs of the present settings."""
    found: list[Comparison] = []
    last = whole(before, seconds, burn_in_s).records_per_s
    for other in others:
        tried = whole(other, seconds, burn_in_s).records_per_s
        now = whole(before, seconds, burn_in_s).records_per_s
        found.append(Comparison((last, now), (tried, tried)))
        last = now
    return found
