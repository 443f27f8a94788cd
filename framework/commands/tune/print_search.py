"""What ``paceline tune`` prints while it searches: a table per rung, and the verdict."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

from rich.console import Console
from rich.table import Table

from framework.commands.tune.candidate import Candidate
from framework.commands.tune.halving import Entry, Final, Rung
from framework.commands.tune.paired_test import LEAST_GAIN, LEAST_PAIRS, Pairs
from framework.commands.tune.search import Search
from framework.measure.statistics import median

BUSY = 0.7  # waiting or running programs per core, over the last minute


@final
class Told:
    """Prints a search. ``refused``: loaders that do not compose with the run, and why. ``measured``: all of it, as plain values."""

    def __init__(self, search: Search, refused: Mapping[str, str]) -> None:
        self.search, self.refused, self.default = search, refused, search.candidates[0]
        self.console = Console(highlight=False)
        self.errors = Console(stderr=True, highlight=False)
        self.measured: dict[str, Any] = {
            "default": self.default._asdict(),
            "rungs": [],
            "final": None,
        }
        self.verdict = ""

    def begin(self, budget_s: float) -> None:
        """What will be tried, and what will not."""
        facts = self.search.facts
        cores = f"{facts.num_cores} core{'' if facts.num_cores == 1 else 's'}"
        self._say(
            f"{len(self.search.candidates)} candidates, {cores}, {budget_s:g} s; as configured: {self.default}"
        )
        if facts.kinds == ("thread",) and not facts.decodes:
            self._say(
                "not tried: processes; these records are only gathered, and handing them over costs more"
            )
        if not facts.kinds:
            self._say("not tried: workers; there is nothing to read")
        if not facts.cuda:
            self._say("not tried: loader=stream; without CUDA it does what prefetch does")
        for name, why in self.refused.items():
            self._say(f"not tried: loader={name}; {why}")
        if note := busy_note(facts.num_cores):
            self._say(note)

    def climb(self, budget_s: float) -> Final:
        """Run the search, printing each rung when it is done."""
        found: Rung | Final | None = None
        rungs = self.search.rungs(budget_s)
        while not isinstance(found, Final):
            with self._busy():
                found = next(rungs)
            if isinstance(found, Rung):
                self._rung(found)
        self._final(found)
        return found

    def stopped(self) -> None:
        """Print the best so far, if there is one. The console may be in the middle of something else."""
        best = self.search.climb.best_so_far() if self.search.climb else None
        if best is None:
            print("stopped before anything could be compared")
            return
        candidate, ratio = best
        words = (
            "" if candidate == self.default else f", {_percent(ratio)}: {' '.join(candidate.words)}"
        )
        print(f"stopped; the fastest so far, not proved: {self._name(candidate)}{words}")

    def _busy(self) -> AbstractContextManager[Any]:
        return self.errors.status("measuring") if self.errors.is_terminal else nullcontext()

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    def _name(self, candidate: Candidate) -> str:
        return f"{candidate} (as configured)" if candidate == self.default else str(candidate)

    def _rung(self, rung: Rung) -> None:
        number = len(self.measured["rungs"]) + 1
        seconds = f"{len(rung.entries)} candidates, {rung.seconds:.2g} s each time"
        table = Table(
            "candidate", title=f"rung {number}: {rung.title}; {seconds}", title_justify="left"
        )
        for name in ("records/s", "spread", "beside"):
            table.add_column(name, justify="right")
        table.add_column("")
        base = next(
            entry.records_per_s for entry in rung.entries if entry.candidate == self.default
        )
        for entry in rung.entries:
            spread, beside = f"± {100 * entry.spread:.0f} %", _percent(entry.records_per_s / base)
            beside = "" if entry.candidate == self.default else beside
            table.add_row(
                self._name(entry.candidate),
                f"{entry.records_per_s:,.0f}",
                spread,
                beside,
                "stays" if entry.kept else "",
            )
        self.console.width = max(self.console.width, 96)
        self.console.print(table)
        for candidate, why in rung.refused:
            self._say(f"not possible: {candidate}: {why}")
        if rung.untried:
            self._say(
                f"no time was left for {len(rung.untried)} candidates: a larger budget= tries them all"
            )
        untried = [candidate._asdict() for candidate in rung.untried]
        self.measured["rungs"].append(
            {
                "title": rung.title,
                "seconds": rung.seconds,
                "entries": [_plain(entry) for entry in rung.entries],
                "untried": untried,
            }
        )

    def _final(self, final: Final) -> None:
        self.verdict = verdict(final)
        self._say(f"final: {self.verdict}")
        pairs = final.pairs
        self.measured["final"] = {
            "default": final.default._asdict(),
            "challenger": final.challenger and final.challenger._asdict(),
            "winner": final.winner._asdict(),
            "pairs": [] if pairs is None else [list(pair) for pair in pairs.rates],
            "gain": pairs and pairs.gain,
            "chance": pairs and pairs.chance,
        }


def busy_note(num_cores: int) -> str:
    """That others use this machine, where they do."""
    load = os.getloadavg()[0]
    if load <= BUSY * num_cores:
        return ""
    return f"note: other programs use this machine (load {load:.1f}): what is measured now may not be so when they have gone"


def verdict(final: Final) -> str:
    """What the pairs say, in one line."""
    if final.challenger is None:
        return f"nothing else is possible here; as configured: {final.default}"
    if final.pairs is None:
        return f"as configured ({final.default}); no time was left to compare it with {final.challenger}: budget= more"
    if len(final.pairs.rates) < LEAST_PAIRS and final.pairs.gain >= LEAST_GAIN:
        why = f"{final.challenger} is {_beside(final.pairs)}, which fewer than {LEAST_PAIRS} pairs cannot prove: budget= more"
        return f"as configured ({final.default}); {why}"
    if not final.pairs.is_won:
        why = f"{final.challenger} is {_beside(final.pairs)}: less than {100 * LEAST_GAIN - 100:.0f} %, or no more than chance"
        return f"as configured ({final.default}); {why}"
    before, after = (median(rates) for rates in zip(*final.pairs.rates, strict=True))
    rates = f"{after:,.0f} records/s instead of {before:,.0f}"
    return f"{final.winner} is {_beside(final.pairs)} than as configured ({final.default}): {rates}"


def won(final: Final) -> str:
    """How much, in some words."""
    if final.winner == final.default or final.pairs is None:
        return "as configured; nothing was proved faster"
    return f"{100 * final.pairs.gain - 100:.0f} % faster"


def _beside(pairs: Pairs) -> str:
    low, high = pairs.quartiles
    amount = f"{abs(100 * pairs.gain - 100):.1f} % {'faster' if pairs.gain >= 1 else 'slower'}"
    return f"{amount} (quartiles {_percent(low)} to {_percent(high)}, {len(pairs.rates)} pairs, p = {pairs.chance:.2g})"


def _percent(ratio: float) -> str:
    return f"{100 * ratio - 100:+.1f} %"


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        **entry.candidate._asdict(),
        "rates": list(entry.rates),
        "records_per_s": entry.records_per_s,
        "kept": entry.kept,
    }
