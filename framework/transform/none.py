"""No change: every image as it is stored."""

from typing import final

from framework.contracts.data import Transform


@final
class NoTransform(Transform):
    pass
