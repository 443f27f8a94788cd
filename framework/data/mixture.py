"""``data=mixture``: records of several packed stores, in proportions."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from framework.contracts.data import SourceContext
from framework.data.source import StoreSource
from framework.errors import ConfigError
from framework.order.batches import Order
from framework.order.draws import sampling
from framework.store.open_store import MixedStore, open_store


def mixture_source(
    path: str | Mapping[str, str],
    weights: Mapping[str, float] | None,
    temperature: float,
    *,
    context: SourceContext,
) -> StoreSource:
    """Return a source of one store, or of several by name.

    In training, an epoch has as many records as the stores together. Validation has each record
    once. ``weights`` is the share of each store, in any unit. Otherwise, shares are the sizes to
    the power of 1 / ``temperature``. ConfigError C203 if stores or options do not fit each other.
    """
    if isinstance(path, str):
        return StoreSource(open_store(path), context)
    store = MixedStore({name: open_store(str(part)) for name, part in path.items()})
    shares = torch.tensor(store.sizes, dtype=torch.float64) ** (1 / temperature)
    if weights is not None:
        where = f"data.weights = {dict(weights)}"
        if temperature != 1:
            what = f"would ignore data.temperature={temperature}"
            raise ConfigError(203, where, what, "leave one of them out")
        values: list[Any] = [weights.get(name) for name in store.stores]
        is_number = [isinstance(value, int | float) and value >= 0 for value in values]
        if len(weights) > len(values) or not all(is_number) or not any(values):
            names = ", ".join(store.stores)
            what = f"must have a number of at least 0 for each of {names}, not all 0"
            raise ConfigError(203, where, what, "correct it")
        shares = torch.tensor(values, dtype=torch.float64)
    if context.training and (weights is not None or temperature != 1):
        context = replace(context, order=partial(_mixed, context, store.starts, shares))
    return StoreSource(store, context)


def _mixed(context: SourceContext, starts: Tensor, shares: Tensor, num_records: int) -> Order:
    order = context.order(num_records)
    if context.order_choice is not None or order.block is not None:
        what = "a mixture with weights or a temperature has an order of its own"
        fix = "choose order=full, or leave data.weights and data.temperature out"
        raise ConfigError(203, "order", what, fix)
    if context.select is not None or context.fold is not None:
        what = "would change the shares of a mixture with weights or a temperature"
        fix = "leave it out, or data.weights and data.temperature"
        raise ConfigError(203, "select, fold", what, fix)
    if num_records == 0:
        return order
    groups = torch.searchsorted(starts, order.used(), right=True) - 1
    sizes = torch.bincount(groups, minlength=len(shares))
    weights = torch.where(sizes > 0, shares / sizes.clamp(min=1), 0)
    return replace(order, sampling=sampling(groups, weights, order.num_used))
