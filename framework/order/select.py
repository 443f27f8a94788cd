"""``select`` and ``folds``: which records of a data set are used.

A selection is an expression over the fields of a record, such as ``label in [3, 5] and width >=
224``. It is parsed by Python and computed for all records at once. Only comparisons and their
combinations are allowed, so a configuration cannot run code by it.
"""

import ast
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from torch import Tensor

from framework.errors import ConfigError, listed
from framework.order.batches import RecordFacts
from framework.order.permutation import permutation


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


class AnswersNames(Protocol):
    """What an expression may ask: ``RecordFacts``, or the facts of other things."""

    @property
    def classes(self) -> Sequence[str]:
        """The names of the values of ``label``, by number."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """The names that ``answer`` knows."""
        ...

    def answer(self, name: str) -> np.ndarray | None:
        """Return a number or a text of each thing, or None for an unknown name."""
        ...


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
    num_records: int,
    facts: RecordFacts,
    select: str | None,
    fold: Fold | None,
    training: bool,
) -> Tensor | None:
    """Return the records that may be used, ascending: int64 [n]; None: all.

    Args:
        num_records: Records of the data set.
        facts: Answers for the names in the expression.
        select: The expression; None: all records.
        fold: The fold that validates; None: no folds.
        training: Whether the records of the other folds are wanted, or those of this one.

    Raises:
        ConfigError: C204 for an expression that cannot be computed, C205 if no record is left or
            ``fold.by`` is not known of every record.
    """
    if select is None and fold is None:
        return None
    records = torch.arange(num_records)
    if select is not None:
        records = torch.from_numpy(selected(select, facts, num_records))
    if fold is None:
        return records
    labels = _labels(records, facts)
    if fold.by is None:
        folds = _folds(labels, fold.count)
    else:
        folds = _folds_of_groups(_groups(records, facts, fold.by), labels, fold.count)
    records = records[(folds != fold.number) if training else (folds == fold.number)]
    if not len(records):
        what = "leaves no record to train on or to validate"
        fix = "use fewer folds, or select more"
        raise ConfigError(205, f"folds = {fold.count}", what, fix)
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


def _labels(records: Tensor, facts: RecordFacts) -> Tensor:
    """Return the class of each record: int64 [n]. Without one class each, all have class 0."""
    labels = facts.answer(LABEL) if facts.classes else None
    if labels is None or not np.issubdtype(labels.dtype, np.integer):
        return torch.zeros(len(records), dtype=torch.int64)
    return torch.from_numpy(labels.astype(np.int64))[records]


def _groups(records: Tensor, facts: RecordFacts, name: str) -> Tensor:
    """Return the group of each record, those with an equal value of a field: int64 [n]."""
    values = facts.answer(name)
    if values is None:
        known = listed(facts.names)
        fix = f"choose from {known}" if known else "leave it out"
        raise ConfigError(205, f"fold_by = {name}", "is not known of every record", fix)
    _, groups = np.unique(values[records.numpy()], return_inverse=True)
    return torch.from_numpy(groups)


def _folds(labels: Tensor, count: int) -> Tensor:
    """Return the fold of each record: int64 [n].

    All folds get as many records, give or take one, and so it is for each class.
    """
    places = permutation(len(labels), FOLD_SEED, 0)
    places = places[torch.argsort(labels[places], stable=True)]
    folds = torch.empty(len(labels), dtype=torch.int64)
    folds[places] = torch.arange(len(labels)) % count
    return folds


def _folds_of_groups(groups: Tensor, labels: Tensor, count: int) -> Tensor:
    """Return the fold of each record: int64 [n]. A group is in one fold.

    The largest group comes first. Each goes to the fold that has the smallest shares of the group's
    classes, as in scikit-learn's ``StratifiedGroupKFold``. Shares are whole numbers of ``WHOLE``:
    floats could be rounded otherwise on the host of another rank.
    """
    cells = _cells(groups, labels)
    places = permutation(len(cells), FOLD_SEED, 0).tolist()
    places.sort(key=lambda group: -sum(cells[group].values()))  # stable
    names, counts = labels.unique(return_counts=True)
    sizes: dict[int, int] = dict(zip(names.tolist(), counts.tolist(), strict=True))
    taken: list[dict[int | None, int]] = [dict.fromkeys([*sizes, ALL], 0) for _ in range(count)]
    fold_of_group = torch.empty(len(cells), dtype=torch.int64)
    for group in places:
        cell = cells[group]
        shares: dict[int | None, int] = {
            label: number * WHOLE // sizes[label] for label, number in cell.items()
        }
        shares[ALL] = sum(cell.values()) * WHOLE // len(labels)
        costs = [sum(fold[label] * share for label, share in shares.items()) for fold in taken]
        best = costs.index(min(costs))
        fold_of_group[group] = best
        for label, share in shares.items():
            taken[best][label] += share
    return fold_of_group[groups]


def _cells(groups: Tensor, labels: Tensor) -> list[dict[int, int]]:
    """Return how many records of each class a group has, for each group."""
    cells: list[dict[int, int]] = [{} for _ in range(int(groups.max()) + 1)]
    num_labels = int(labels.max()) + 1
    keys, counts = (groups * num_labels + labels).unique(return_counts=True)
    for key, number in zip(keys.tolist(), counts.tolist(), strict=True):
        cells[key // num_labels][key % num_labels] = number
    return cells


def truths(
    text: str, facts: AnswersNames, count: int, words: ExpressionWords = SELECT
) -> np.ndarray:
    """Return which of ``count`` things fulfil an expression: bool [count]. ConfigError C204."""
    return _Expression(text, facts, count, words).mask


@final
class _Expression:
    """An expression, and the records for which it is true."""

    def __init__(self, text: str, facts: AnswersNames, count: int, words: ExpressionWords) -> None:
        self._text = text
        self._facts = facts
        self._words = words
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            raise self._error("cannot be read as an expression") from error
        self.mask: np.ndarray = self._truth(tree.body)
        if self.mask.shape != (count,):
            raise self._error(f"compares no field of the {words.thing}s")

    def _error(self, what: str, fix: str = "") -> ConfigError:
        where = f"{self._words.key} = {self._text[:200]}"
        return ConfigError(204, where, what[:300], fix or self._words.fix)

    def _truth(self, node: ast.expr) -> Any:
        """Return whether each record fulfils a condition: bool [num_records]."""
        if isinstance(node, ast.BoolOp):
            parts = [self._truth(part) for part in node.values]
            combine = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return combine.reduce(parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self._truth(node.operand)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        raise self._error(f"{ast.unparse(node)!r} is no comparison")

    def _comparison(self, node: ast.Compare) -> Any:
        sides = [node.left, *node.comparators]
        truths = []
        for left, kind, right in zip(sides, node.ops, sides[1:], strict=False):
            compare = COMPARISONS.get(type(kind))
            if compare is None:
                raise self._error(f"{ast.unparse(node)!r} is no comparison of values")
            is_list = isinstance(right, LISTS)
            is_empty = isinstance(right, LISTS) and not right.elts
            if is_list != isinstance(kind, ast.In | ast.NotIn):
                raise self._error(f"{ast.unparse(node)!r} needs a list after 'in', and only there")
            names = [self._field(side) for side in (left, right)]
            pair = [self._side(side, names) for side in (left, right)]
            if names == [None, None]:
                raise self._error(
                    f"{ast.unparse(node)!r} compares no field of the {self._words.thing}s"
                )
            kinds = {is_text for value in pair for is_text in _are_texts(value)}
            if len(kinds) > 1 and not is_empty:
                raise self._error(f"{ast.unparse(node)!r} compares a text with a number")
            try:
                truths.append(compare(*pair))
            except OverflowError as error:
                raise self._error("has a number that is too large") from error
        return np.logical_and.reduce(truths)

    def _field(self, node: ast.expr) -> str | None:
        """Return the name that a side is, such as ``label`` or ``optim.lr``; None if it is none."""
        if isinstance(node, ast.Attribute):
            block = self._field(node.value)
            return None if block is None else f"{block}.{node.attr}"
        return node.id if isinstance(node, ast.Name) else None

    def _side(self, node: ast.expr, names: list[str | None]) -> Any:
        """Return the value of one side: of all records, or a constant, or a list of constants."""
        name = self._field(node)
        if name is not None:
            values = self._facts.answer(name)
            if values is None:
                known = listed(self._facts.names)
                fix = f"choose from {known}" if known else "leave it out"
                raise self._error(f"{name!r} is not known of every {self._words.thing}", fix)
            return values
        if isinstance(node, LISTS):
            return [self._constant(item, names) for item in node.elts]
        return self._constant(node, names)

    def _constant(self, node: ast.expr, names: list[str | None]) -> Any:
        """Return a number or a text. Beside ``label``, the name of a class is its number."""
        constant, is_negative = node, False
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            constant, is_negative = node.operand, True
        if not isinstance(constant, ast.Constant):
            what = f"{ast.unparse(node)!r} is neither a field nor a value"
            fix = "write texts in quotes" if isinstance(constant, ast.Name) else ""
            raise self._error(what, fix)
        value = constant.value
        if is_negative and isinstance(value, int | float):
            return -value
        if is_negative or not isinstance(value, int | float | str):
            raise self._error(f"{ast.unparse(node)!r} is neither a number nor a text")
        if isinstance(value, str) and LABEL in names and self._facts.classes:
            if value not in self._facts.classes:
                raise self._error(f"{value!r} is no class of the data")
            return list(self._facts.classes).index(value)
        return value


def _are_texts(values: Any) -> set[bool]:
    """Return whether the values of a field, or constants, are texts; both if some are."""
    if isinstance(values, np.ndarray):
        return {values.dtype.kind in "UO"}
    if isinstance(values, list):
        return {isinstance(value, str) for value in values}
    return {isinstance(values, str)}


def names_of(select: str) -> set[str]:
    """Return the names in an expression, which may be anything."""
    try:
        tree = ast.parse(select.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
