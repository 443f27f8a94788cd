import pytest

from framework.commands.tune.search_batch_size import (
    BatchSizeSearch,
    SpeedCurve,
    Trial,
    print_curve,
)


class Machine:
    """A machine on which batches of up to ``fits`` records fit.

    A step takes ``fixed_s``, and ``record_s`` for each record.
    """

    def __init__(self, fits: int, fixed_s: float = 0.01, record_s: float = 1e-4, breaks=()):
        self.fits, self.fixed_s, self.record_s, self.breaks = fits, fixed_s, record_s, breaks
        self.now, self.asked = 0.0, []

    def clock(self) -> float:
        return self.now

    def attempt(self, size: int, seconds: float, limit_s: float) -> Trial:
        self.asked.append(size)
        step_s = self.fixed_s + size * self.record_s
        self.now += min(limit_s, max(seconds, 3 * step_s))
        if size > self.fits:
            return Trial(size, why="out of memory", memory=True)
        if size in self.breaks:
            return Trial(size, why="ValueError: more than 1 value per channel")
        if 3 * step_s > limit_s:
            return Trial(size, why="steps take too long", late=True)
        return Trial(size, (size / step_s,) * 4, step_s, size * 1000)

    def search(self, most: int = 100_000, step: int = 1, budget_s: float = 60.0) -> SpeedCurve:
        sizes = BatchSizeSearch(self.attempt, most, step, budget_s, self.clock)
        for _ in sizes.run():
            pass
        return sizes.curve


@pytest.mark.parametrize("fits", [8, 9, 100, 511, 512, 700, 5000])
def test_the_largest_that_fits_is_found_to_a_sixteenth(fits):
    curve = Machine(fits, fixed_s=0.1, record_s=1e-6).search()
    assert curve.bound == "memory"
    assert curve.largest.batch_size <= fits <= curve.largest.batch_size * (1 + 1 / 16) + 1


def test_steps_too_long_for_the_budget_end_the_doubling():
    machine = Machine(10**9, record_s=0.01)
    curve = machine.search(budget_s=20.0)
    assert curve.bound == "time"
    assert machine.now < 60.0


def test_the_recommended_is_the_smallest_near_the_best_rate():
    curve = Machine(10**9, fixed_s=0.01, record_s=1e-4).search(most=16384)
    best = max(trial.records_per_s for trial in curve.fitting)
    smaller = [trial for trial in curve.fitting if trial.batch_size < curve.recommended.batch_size]
    assert curve.recommended.records_per_s >= 0.97 * best
    assert smaller
    assert all(trial.records_per_s < 0.97 * best for trial in smaller)


def test_rates_are_measured_again_the_largest_first():
    machine = Machine(100)
    curve = machine.search()
    sizes = [trial.batch_size for trial in curve.fitting]
    assert machine.asked[-len(sizes) :] == sizes[::-1]
    assert all(len(trial.rates) == 8 for trial in curve.fitting)


def test_a_size_that_no_longer_fits_is_removed():
    machine = Machine(100)
    sizes = BatchSizeSearch(machine.attempt, 1000, 1, 60.0, machine.clock)
    for trial in sizes.run():
        if trial.batch_size == 100:
            machine.fits = 90
    assert sizes.curve.largest.batch_size <= 90


FITS, BETTER = Trial(8, (80.0,) * 4, 0.1, 1 << 20), Trial(16, (160.0,) * 4, 0.1, 2 << 20)
TOO_LARGE = Trial(32, why="out of memory", memory=True)
CONFIG = {"rank_batch_size": None, "batch_size": 8}


def test_the_curve_ends_with_the_command_that_follows_it(capsys):
    plain = print_curve(
        SpeedCurve((FITS, BETTER, TOO_LARGE), "memory"),
        ["--config-dir", "my dir", "batch_size=8", "epochs=3"],
        CONFIG,
        False,
    )
    assert "paceline train --config-dir 'my dir' epochs=3 batch_size=16" in capsys.readouterr().out
    assert (plain["recommended"], plain["largest"], plain["bound"]) == (16, 16, "memory")
    assert [trial["fits"] for trial in plain["curve"]] == [True, True, False]
