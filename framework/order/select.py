"""``select`` and ``folds``: which records of a data set are used.

A selection is an expression over the fields of a record, such as ``label in [3, 5] and width >=
224``. It is parsed by Python and computed for all records at once. Only comparisons and their
combinations are allowed, so a configuration cannot run code by it.
"""

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.errors import ConfigError, listed
from framework.order.batches import AnswersNames, RecordFacts
from framework.order.draws import permutation


class ExpressionWords(NamedTuple):
    """How the errors of an expression call it, and the things that it chooses from."""

    key: str = "select"
    thing: str = "record"
    fix: str = "compare fields, as in select='label in [3, 5] and width >= 224'"


SELECT = ExpressionWords()


def _is_any_of(values: np.ndarray, given: Sequence[Any]) -> np.ndarray:
    """Return which values equal one of those given: bool, of the shape of ``values``.

    Each is compared as ``==`` does. ``numpy.isin`` would find no float32 that is 0.1.
    """
    result = np.zeros(np.shape(values), bool)
    for value in given:
        result |= np.equal(values, value).astype(bool)
    return result


COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: _is_any_of,
    ast.NotIn: lambda values, given: ~_is_any_of(values, given),
}

LISTS = (ast.List, ast.Tuple, ast.Set)
LABEL = "label"  # as in ``contracts.records``, which lies above
WHOLE = 1 << 62  # a share of 1
ALL = None  # all records, which are balanced as one more class
FOLD_SEED = 0  # not the run's: runs that differ in their seed have the same folds


@dataclass(frozen=True)
class Fold:
    """The fold that validates."""

    number: int  # from 0
    count: int  # of all folds
    by: str | None = None  # a field: records with equal values are in one fold


def chosen(
    num_records: int, facts: RecordFacts, select: str | None, fold: Fold | None, training: bool
) -> Tensor | None:
    """Return the records that fulfil ``select``, ascending: int64 [n]; None: all.

    With ``fold``, they are those of the other folds in ``training``, else those of this one.
    ConfigError C204 for an expression that cannot be computed, C205 if no record is left or
    ``fold.by`` is not known of every record.
    """
    if select is None and fold is None:
        return None
    records = torch.arange(num_records)
    if select is not None:
        records = torch.from_numpy(selected(select, facts, num_records))
    if fold is None:
        return records
    # Without one class each, all have class 0.
    labels = torch.zeros(len(records), dtype=torch.int64)
    known = facts.answer(LABEL) if facts.classes else None
    if known is not None and np.issubdtype(known.dtype, np.integer):
        labels = torch.from_numpy(known.astype(np.int64))[records]
    if fold.by is None:
        # All folds get as many records, give or take one, and so it is for each class.
        places = permutation(len(labels), FOLD_SEED, 0)
        places = places[torch.argsort(labels[places], stable=True)]
        folds = torch.empty(len(labels), dtype=torch.int64)
        folds[places] = torch.arange(len(labels)) % fold.count
    else:
        values = facts.answer(fold.by)
        if values is None:
            where, what = f"fold_by = {fold.by}", "is not known of every record"
            raise ConfigError(205, where, what, _choose(facts))
        _, groups = np.unique(values[records.numpy()], return_inverse=True)
        folds = _folds_of_groups(torch.from_numpy(groups), labels, fold.count)
    records = records[(folds != fold.number) if training else (folds == fold.number)]
    if not len(records):
        what = "leaves no record to train on or to validate"
        raise ConfigError(205, f"folds = {fold.count}", what, "use fewer folds, or select more")
    return records


def selected(
    select: str, facts: AnswersNames, num_records: int, words: ExpressionWords = SELECT
) -> np.ndarray:
    """Return the records that fulfil an expression, ascending: int64 [n]. C204; C205 if none."""
    records = np.flatnonzero(truths(select, facts, num_records, words))
    if not len(records):
        what = f"no record of {num_records:,} fulfils it"
        raise ConfigError(205, f"{words.key} = {select}", what, "select more")
    return records


def _folds_of_groups(groups: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return the fold of each record: int64 [n]. A group is in one fold.

    The largest group comes first. Each goes to the fold that has the smallest shares of the group's
    classes, as in scikit-learn's ``StratifiedGroupKFold``. Shares are whole numbers of ``WHOLE``:
    floats could be rounded otherwise on the host of another rank.
    """
    cells: list[dict[int, int]] = [{} for _ in range(int(groups.max()) + 1)]  # records by class
    num_labels = int(labels.max()) + 1
    keys, counts = (groups * num_labels + labels).unique(return_counts=True)
    for key, number in zip(keys.tolist(), counts.tolist(), strict=True):
        cells[key // num_labels][key % num_labels] = number
    places = permutation(len(cells), FOLD_SEED, 0).tolist()
    places.sort(key=lambda group: -sum(cells[group].values()))  # stable
    names, counts = labels.unique(return_counts=True)
    sizes: dict[int, int] = dict(zip(names.tolist(), counts.tolist(), strict=True))
    taken: list[dict[int | None, int]] = [dict.fromkeys([*sizes, ALL], 0) for _ in range(count)]
    fold_of_group = torch.empty(len(cells), dtype=torch.int64)
    for group in places:
        cell = cells[group]
        shares: dict[int | None, int] = {key: n * WHOLE // sizes[key] for key, n in cell.items()}
        shares[ALL] = sum(cell.values()) * WHOLE // len(labels)
        costs = [sum(fold[label] * share for label, share in shares.items()) for fold in taken]
        best = costs.index(min(costs))
        fold_of_group[group] = best
        for label, share in shares.items():
            taken[best][label] += share
    return fold_of_group[groups]


def truths(text: str, facts: AnswersNames, num: int, words: ExpressionWords = SELECT) -> np.ndarray:
    """Return which of ``num`` things fulfil an expression: bool [num]. ConfigError C204."""
    expression = _Expression(text, facts, words)
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise expression.error("cannot be read as an expression") from error
    mask: np.ndarray = expression.truth(tree.body)
    if mask.shape != (num,):
        raise expression.error(f"compares no field of the {words.thing}s")
    return mask


@final
@dataclass(frozen=True)
class _Expression:
    text: str
    facts: AnswersNames
    words: ExpressionWords

    def error(self, what: str, fix: str = "") -> ConfigError:
        where = f"{self.words.key} = {self.text[:200]}"
        return ConfigError(204, where, what[:300], fix or self.words.fix)

    def truth(self, node: ast.expr) -> Any:
        """Return whether each thing fulfils a condition: bool [count]."""
        if isinstance(node, ast.BoolOp):
            combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return combine.reduce([self.truth(part) for part in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.truth(node.operand)
        if not isinstance(node, ast.Compare):
            raise self.error(f"{ast.unparse(node)!r} is no comparison")
        sides, words = [node.left, *node.comparators], ast.unparse(node)
        truths = []
        for left, kind, right in zip(sides, node.ops, sides[1:], strict=False):
            compare = COMPARISONS.get(type(kind))
            if compare is None:
                raise self.error(f"{words!r} is no comparison of values")
            if isinstance(right, LISTS) != isinstance(kind, ast.In | ast.NotIn):
                raise self.error(f"{words!r} needs a list after 'in', and only there")
            names = [_field(side) for side in (left, right)]
            pair: list[Any] = []  # the values of all things, or a constant, or a list of constants
            for side, name in zip((left, right), names, strict=True):
                if name is not None:
                    values = self.facts.answer(name)
                    if values is None:
                        what = f"{name!r} is not known of every {self.words.thing}"
                        raise self.error(what, _choose(self.facts))
                    pair.append(values)
                elif isinstance(side, LISTS):
                    pair.append([self._constant(item, names) for item in side.elts])
                else:
                    pair.append(self._constant(side, names))
            if names == [None, None]:
                raise self.error(f"{words!r} compares no field of the {self.words.thing}s")
            are_texts: set[bool] = set()
            for value in pair:
                if isinstance(value, np.ndarray):
                    are_texts.add(value.dtype.kind in "UO")
                else:
                    constants = value if isinstance(value, list) else [value]
                    are_texts |= {isinstance(constant, str) for constant in constants}
            if len(are_texts) > 1:
                raise self.error(f"{words!r} compares a text with a number")
            try:
                truths.append(compare(*pair))
            except OverflowError as error:
                raise self.error("has a number that is too large") from error
        return np.logical_and.reduce(truths)

    def _constant(self, node: ast.expr, names: list[str | None]) -> Any:
        """Return a number or a text. Beside ``label``, the name of a class is its number."""
        try:
            value = ast.literal_eval(node)
        except ValueError as error:
            what = f"{ast.unparse(node)!r} is neither a field nor a value"
            fix = "write texts in quotes" if isinstance(node, ast.Name) else ""
            raise self.error(what, fix) from error
        if not isinstance(value, int | float | str):
            raise self.error(f"{ast.unparse(node)!r} is neither a number nor a text")
        if isinstance(value, str) and LABEL in names and self.facts.classes:
            if value not in self.facts.classes:
                raise self.error(f"{value!r} is no class of the data")
            return list(self.facts.classes).index(value)
        return value


def _choose(facts: AnswersNames) -> str:
    known = listed(facts.names)
    return f"choose from {known}" if known else "leave it out"


def _field(node: ast.expr) -> str | None:
    """Return the name that a side is, such as ``label`` or ``optim.lr``; None if it is none."""
    if isinstance(node, ast.Attribute):
        block = _field(node.value)
        return None if block is None else f"{block}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None
