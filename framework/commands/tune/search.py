"""The search over the choices about reading, on a configured run."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from typing import Any, final

from framework.commands.probe import Probe, visit
from framework.commands.tune.candidate import Candidate, applied, candidates, facts_of, present
from framework.commands.tune.halving import Climb, Final, Rung
from framework.measure.host import cores_per_rank

Config = dict[str, Any]
BURN_IN_S = 0.15  # all queues are full after this time


@final
class Search:
    """A search that raises what a run would raise.

    Args:
        config: The present settings, as plain and resolved values.
        allowed: The user's packages.
        loaders: The configurations of all loaders that compose with the run, by name.
        loader: The name of the present loader.

    """

    def __init__(
        self, config: Config, allowed: Sequence[str], loaders: Mapping[str, Config], loader: str
    ) -> None:
        self.config = config
        self.allowed = allowed
        self.loaders = {**loaders, loader: config["loader"]}
        with closing(Probe(config, allowed)) as probe:
            self.facts = facts_of(probe.assembly, cores_per_rank())
        self.candidates = candidates(present(config, self.facts, loader), self.facts, self.loaders)
        self.climb: Climb | None = None
        self._epochs = count()

    def measure(self, candidate: Candidate, seconds: float) -> tuple[float, ...]:
        """Return records per second, on records that the last visit did not read."""
        config = self.config
        if candidate != self.candidates[0]:
            config = applied(config, candidate, self.loaders)
        return (visit(config, self.allowed, next(self._epochs), seconds, BURN_IN_S).rate,)

    def rungs(self, budget_s: float, clock: Any = time.monotonic) -> Iterator[Rung | Final]:
        """Measure rung by rung, then the final."""
        self.climb = Climb(self.candidates, self.measure, budget_s, clock)
        return self.climb.rungs()
