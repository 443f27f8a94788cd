"""All planted set-ups."""

from planted import compute, loading, machine, ranks, records, run, storage
from planted.contract import Planted

MODULES = (loading, storage, records, compute, machine, run, ranks)


def every_planted() -> list[Planted]:
    return [planted for module in MODULES for planted in module.PLANTED]
