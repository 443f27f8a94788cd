"""What the tests of several commands share."""

import pytest

from framework.order.batches import Order


@pytest.fixture
def epochs_read(monkeypatch) -> list[int]:
    """Return a list of the epochs whose order was asked for, in turn."""
    epochs: list[int] = []
    shares = Order.shares

    def noted(self, epoch, start=0):
        epochs.append(epoch)
        return shares(self, epoch, start)

    monkeypatch.setattr(Order, "shares", noted)
    return epochs
