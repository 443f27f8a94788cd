"""Print a search: a table for each rung, and the result."""

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

BUSY = 0.7  # programs per core that run or wait, over the last minute


@final
class SearchPrinter:
    """Runs and prints a search.

    Attributes:
        measured: All results as plain values.
        verdict: The result of the final, in a line.

    """

    def __init__(self, search: Search, refused: Mapping[str, str]) -> None:
        """``refused`` maps loaders that do not compose with the run to the reason."""
        self.search = search
        self.refused = refused
        self.default = search.candidates[0]
        self.console = Console(highlight=False)
        self.console.width = max(self.console.width, 96)
        self.errors = Console(stderr=True, highlight=False)
        self.verdict = ""
        self.measured: dict[str, Any] = {
            "default": self.default._asdict(),
            "rungs": [],
            "final": None,
        }

    def begin(self, budget_s: float) -> None:
        """Print what will be tried, and what will not."""
        facts = self.search.facts
        cores = f"{facts.num_cores} core{'' if facts.num_cores == 1 else 's'}"
        many = f"{len(self.search.candidates)} candidates, {cores}, {budget_s:g} s"
        self._say(f"{many}; as configured: {self.default}")
        if not facts.kinds:
            self._say("not tried: workers; there is nothing to read")
        elif facts.kinds == ("thread",) and not facts.decodes:
            why = "these records are only copied, and handing them over costs more"
            self._say(f"not tried: processes; {why}")
        if not facts.cuda:
            self._say("not tried: loader=stream; without CUDA it does the same as prefetch")
        for name, why in self.refused.items():
            self._say(f"not tried: loader={name}; {why}")
        if note := busy_note(facts.num_cores):
            self._say(note)

    def climb(self, budget_s: float) -> Final:
        """Run the search and print each rung when it is done."""
        rungs = self.search.rungs(budget_s)
        while True:
            with self._busy():
                result = next(rungs)
            if isinstance(result, Final):
                self._final(result)
                return result
            self._rung(result)

    def stopped(self) -> None:
        """Print the best candidate so far, without the console, which may be printing itself."""
        best = self.search.climb.best_so_far() if self.search.climb else None
        if best is None:
            print("stopped before anything could be compared")
            return
        candidate, ratio = best
        words = ""
        if candidate != self.default:
            words = f", {_percent(ratio)}: {' '.join(candidate.words)}"
        print(f"stopped; the fastest so far, not proved: {self._name(candidate)}{words}")

    def _busy(self) -> AbstractContextManager[Any]:
        return self.errors.status("measuring") if self.errors.is_terminal else nullcontext()

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    def _name(self, candidate: Candidate) -> str:
        return f"{candidate} (as configured)" if candidate == self.default else str(candidate)

    def _rung(self, rung: Rung) -> None:
        number = len(self.measured["rungs"]) + 1
        size = f"{len(rung.entries)} candidates, {rung.seconds:.2g} s each time"
        title = f"rung {number}: {rung.title}; {size}"
        table = Table("candidate", title=title, title_justify="left")
        for name in ("records/s", "spread", "beside"):
            table.add_column(name, justify="right")
        table.add_column("")
        rates = {entry.candidate: entry.records_per_s for entry in rung.entries}
        for entry in rung.entries:
            ratio = ""
            if entry.candidate != self.default:
                ratio = _percent(entry.records_per_s / rates[self.default])
            table.add_row(
                self._name(entry.candidate),
                f"{entry.records_per_s:,.0f}",
                f"± {100 * entry.spread:.0f} %",
                ratio,
                "stays" if entry.kept else "",
            )
        self.console.print(table)
        for candidate, why in rung.refused:
            self._say(f"not possible: {candidate}: {why}")
        if rung.untried:
            many = f"{len(rung.untried)} candidates"
            self._say(f"no time was left for {many}: raise budget= to try all")
        self.measured["rungs"].append(
            {
                "title": rung.title,
                "seconds": rung.seconds,
                "entries": [_plain(entry) for entry in rung.entries],
                "untried": [candidate._asdict() for candidate in rung.untried],
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
    """Return a note if other programs use this machine."""
    load = os.getloadavg()[0]
    if load <= BUSY * num_cores:
        return ""
    what = "the results may differ when they have ended"
    return f"note: other programs use this machine (load {load:.1f}): {what}"


def verdict(final: Final) -> str:
    """Return the result of the pairs in a line."""
    if final.challenger is None:
        return f"nothing else is possible here; as configured: {final.default}"
    as_configured = f"as configured ({final.default})"
    if final.pairs is None:
        return f"{as_configured}; no time was left to compare {final.challenger}: raise budget="
    difference = f"{final.challenger} is {_difference(final.pairs)}"
    if len(final.pairs.rates) < LEAST_PAIRS and final.pairs.gain >= LEAST_GAIN:
        why = f"fewer than {LEAST_PAIRS} pairs cannot prove: raise budget="
        return f"{as_configured}; {difference}, which {why}"
    if not final.pairs.is_won:
        least = 100 * LEAST_GAIN - 100
        return f"{as_configured}; {difference}: less than {least:.0f} %, or no more than chance"
    before, after = (median(rates) for rates in zip(*final.pairs.rates, strict=True))
    rates = f"{after:,.0f} records/s instead of {before:,.0f}"
    return f"{difference} than {as_configured}: {rates}"


def won(final: Final) -> str:
    """Return how much was won, in a few words."""
    if final.winner == final.default or final.pairs is None:
        return "as configured; nothing was proved faster"
    return f"{100 * final.pairs.gain - 100:.0f} % faster"


def _difference(pairs: Pairs) -> str:
    low, high = pairs.quartiles
    sign = "faster" if pairs.gain >= 1 else "slower"
    details = f"quartiles {_percent(low)} to {_percent(high)}, {len(pairs.rates)} pairs"
    return f"{abs(100 * pairs.gain - 100):.1f} % {sign} ({details}, p = {pairs.chance:.2g})"


def _percent(ratio: float) -> str:
    return f"{100 * ratio - 100:+.1f} %"


def _plain(entry: Entry) -> dict[str, Any]:
    return {
        **entry.candidate._asdict(),
        "rates": list(entry.rates),
        "records_per_s": entry.records_per_s,
        "kept": entry.kept,
    }
