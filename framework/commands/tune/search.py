"""The search over what can be chosen about reading, on a run as it is configured."""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, final

from framework.commands.probe import Probe
from framework.commands.tune.candidate import (
    Candidate,
    CandidateFacts,
    applied,
    candidates,
    facts_of,
    present,
)
from framework.commands.tune.halving import Climb, Final, Rung
from framework.commands.tune.measured_run import visit
from framework.measure.host import cores_per_rank

Config = dict[str, Any]
BURN_IN_S = 0.15  # queues are full after that, whatever was chosen


@final
class Search:
    """``config``: the present settings, plain and resolved. ``loaders``: the choices that compose with them, by name, as configured;
    ``loader``: the present one's name. Raises what a run would raise.
    """

    def __init__(
        self, config: Config, allowed: Sequence[str], loaders: Mapping[str, Config], loader: str
    ) -> None:
        self.config, self.allowed = config, allowed
        self.loaders = {**loaders, loader: config["loader"]}
        probe = Probe(config, allowed)
        try:
            self.facts: CandidateFacts = facts_of(probe.assembly, cores_per_rank())
        finally:
            probe.close()
        self.candidates = candidates(present(config, self.facts, loader), self.facts, self.loaders)
        self._epochs = count()
        self.climb: Climb | None = None

    def measure(self, candidate: Candidate, seconds: float) -> tuple[float, ...]:
        """Records per second, on records that were not just read: of one visit."""
        config = (
            self.config
            if candidate == self.candidates[0]
            else applied(self.config, candidate, self.loaders)
        )
        return (visit(config, self.allowed, next(self._epochs), seconds, BURN_IN_S).rate,)

    def rungs(self, budget_s: float, clock: Any = time.monotonic) -> Iterator[Rung | Final]:
        """Measure, rung by rung, then the final."""
        self.climb = Climb(self.candidates, self.measure, budget_s, clock)
        return self.climb.rungs()
