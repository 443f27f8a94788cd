"""A GPU kernel of ours that takes the place of torch's operators, as long as both agree."""

from collections.abc import Callable, Hashable
from typing import final

import torch
from torch import Tensor

from framework.errors import words_of


@final
class CheckedKernel:
    """Runs a kernel. Its first result of each kind is compared with that of the operators.

    Attributes:
        failure: Why it is no longer used, or None.
    """

    def __init__(self) -> None:
        self.failure: str | None = None
        self._checked: set[Hashable] = set()

    def __call__(
        self, kind: Hashable, kernel: Callable[[], Tensor], operators: Callable[[], Tensor]
    ) -> Tensor | None:
        """Return the kernel's result, or None if the operators must do the work.

        Args:
            kind: What the compiled code depends on.
            kernel: Runs the kernel. It may raise anything: a package or a compiler may be missing.
            operators: Computes the same.
        """
        if self.failure is not None:
            return None
        try:
            result = kernel()
            if kind not in self._checked and result.numel():
                expected = operators()
                if result.dtype != expected.dtype or not torch.equal(result, expected):
                    self.failure = "its numbers differ from the operators'"
                    return None
                self._checked.add(kind)
        except Exception as error:  # noqa: BLE001  # see ``kernel``
            self.failure = f"{type(error).__name__}: {words_of(error)[:200]}"
            return None
        return result
