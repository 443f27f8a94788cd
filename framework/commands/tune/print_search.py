"""Print a search: a table for each rung, and the result."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, final

from framework.cli.print_table import print_table
from framework.cli.units import plural, rate
from framework.commands.tune.candidate import Candidate
from framework.commands.tune.halving import Entry, Final, Rung
from framework.errors import say
from framework.measure.statistics import LEAST_GAIN, LEAST_PAIRS, Pairs, median
from framework.system.safe_console import SafeConsole

if TYPE_CHECKING:
    from framework.commands.tune.search import Search

BUSY = 0.7  # programs per core that run or wait, over the last minute


@final
class SearchPrinter:
    """A printer of a search, which also runs it.

    Args:
        search: The search to run.
        refused: The reason for each loader that does not compose with the run, by its name.

    Attributes:
        measured: The results of the search.
        verdict: The result of the final in a line; "" before the final.
    """

    def __init__(self, search: "Search", refused: Mapping[str, str]) -> None:
        self.search = search
        self.refused = refused
        self.default = search.candidates[0]
        self.errors = SafeConsole(stderr=True)
        self.verdict = ""
        default = self.default._asdict()
        self.measured: dict[str, Any] = {"default": default, "rungs": [], "final": None}

    def begin(self, budget_s: float) -> None:
        facts = self.search.facts
        many = plural(len(self.search.candidates), "candidate")
        many += f", {plural(facts.num_cores, 'core')}"
        say(f"{many}, {budget_s:g} s; as configured: {self.default}")
        if not facts.kinds:
            say("not tried: workers; there is nothing to read")
        elif facts.kinds == ("thread",) and not facts.decodes:
            why = "these records are only copied, and handing them over costs more"
            say(f"not tried: processes; {why}")
        if not facts.cuda:
            say("not tried: loader=stream; without CUDA it does the same as prefetch")
        for name, why in self.refused.items():
            say(f"not tried: loader={name}; {why}")
        print_busy(facts.num_cores)

    def climb(self, budget_s: float) -> Final:
        rungs = self.search.rungs(budget_s)
        while True:
            sys.stdout.flush()  # a pipe shows each rung as soon as it is done
            busy = nullcontext()
            if self.errors.is_terminal:
                busy = self.errors.status("measuring")
            with busy:
                result = next(rungs)
            if isinstance(result, Final):
                self._final(result)
                return result
            self._rung(result)

    def stopped(self) -> None:
        """Print the best candidate so far, without the console, which may be printing itself."""
        best = self.search.climb and self.search.climb.best_so_far()
        if best is None:
            say("stopped before anything could be compared")
            return
        candidate, ratio = best
        words = self._name(candidate)
        if candidate != self.default:
            words += f", {_percent(ratio)}: {' '.join(candidate.words)}"
        say(f"stopped; the fastest so far, not proved: {words}")

    def _name(self, candidate: Candidate) -> str:
        return f"{candidate} (as configured)" if candidate == self.default else str(candidate)

    def _rung(self, rung: Rung) -> None:
        number = len(self.measured["rungs"]) + 1
        size = f"{plural(len(rung.entries), 'candidate')}, {rung.seconds:.2g} s each time"
        title = f"rung {number}: {rung.title}; {size}"
        heads = ["records/s", "spread", "beside"]
        print_table(title, ["candidate"], heads, self._rows(rung.entries), [""])
        for candidate, why in rung.refused:
            say(f"not possible: {candidate}: {why}")
        if rung.untried:
            many = plural(len(rung.untried), "candidate")
            say(f"no time was left for {many}: raise budget= to try all")
        known = {
            "title": rung.title,
            "seconds": rung.seconds,
            "entries": [_plain(entry) for entry in rung.entries],
            "untried": [candidate._asdict() for candidate in rung.untried],
        }
        self.measured["rungs"].append(known)

    def _rows(self, entries: Sequence[Entry]) -> Iterator[list[str]]:
        rates = {entry.candidate: entry.records_per_s for entry in entries}
        for entry in entries:
            spread = f"± {100 * entry.spread:.0f} %"
            row = [self._name(entry.candidate), rate(entry.records_per_s), spread, ""]
            if entry.candidate != self.default:
                row[3] = _percent(entry.records_per_s / rates[self.default])
            if entry.kept:
                row.append("stays")
            yield row

    def _final(self, final: Final) -> None:
        self.verdict = verdict(final)
        say(f"final: {self.verdict}")
        pairs = final.pairs
        each = []
        if pairs is not None:
            each = [list(rates) for rates in zip(pairs.before, pairs.after, strict=True)]
        self.measured["final"] = {
            "default": final.default._asdict(),
            "challenger": final.challenger and final.challenger._asdict(),
            "winner": final.winner._asdict(),
            "pairs": each,
            "gain": pairs and pairs.gain,
            "chance": pairs and pairs.chance,
        }


def print_busy(num_cores: int) -> None:
    """Print a note if other programs use this machine."""
    load = os.getloadavg()[0]
    if load > BUSY * num_cores:
        what = "the results may differ when they have ended"
        say(f"note: other programs use this machine (load {load:.1f}): {what}")


def verdict(final: Final) -> str:
    """Return the result of the pairs in a line."""
    if final.challenger is None:
        return f"nothing else is possible here; as configured: {final.default}"
    as_configured = f"as configured ({final.default})"
    if final.pairs is None:
        return f"{as_configured}; no time was left to compare {final.challenger}: raise budget="
    difference = f"{final.challenger} is {_difference(final.pairs)}"
    if len(final.pairs.before) < LEAST_PAIRS and final.pairs.gain >= LEAST_GAIN:
        why = f"fewer than {LEAST_PAIRS} pairs cannot prove: raise budget="
        return f"{as_configured}; {difference}, which {why}"
    if not final.pairs.is_won:
        least = 100 * LEAST_GAIN - 100
        return f"{as_configured}; {difference}: less than {least:.0f} %, or no more than chance"
    rates = f"{rate(median(final.pairs.after))} records/s"
    rates += f" instead of {rate(median(final.pairs.before))}"
    return f"{difference} than {as_configured}: {rates}"


def won(final: Final) -> str:
    """Return how much was won, in a few words."""
    if final.winner == final.default or final.pairs is None:
        return "as configured; nothing was proved faster"
    return f"{100 * final.pairs.gain - 100:.0f} % faster"


def _difference(pairs: Pairs) -> str:
    low, high = pairs.quartiles
    sign = "faster" if pairs.gain >= 1 else "slower"
    details = f"quartiles {_percent(low)} to {_percent(high)}, {len(pairs.before)} pairs"
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
