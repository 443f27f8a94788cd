"""Class names to numbers, one rule for all inputs."""

import os
import re
from collections.abc import Callable, Iterable, Sequence

from framework.errors import ConfigError, DataError

INTEGER = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)  # 007 is a name
MOST_CLASSES = (
    100_000  # the largest label that is believed to number a class; ImageNet-21k has 21,841
)


def class_pattern(pattern: str) -> re.Pattern[str]:
    """A regular expression that finds the class in a name: its one group. ConfigError C160."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            160,
            f"input.label_pattern = {pattern}",
            f"not a regular expression ({error})",
            "correct it",
        ) from error
    if compiled.groups != 1:
        what, fix = (
            f"has {compiled.groups} groups, not one",
            r"put brackets around the class, as in '^(n\d+)_'",
        )
        raise ConfigError(160, f"input.label_pattern = {pattern}", what, fix)
    return compiled


def class_in(name: str, pattern: re.Pattern[str], where: str) -> str:
    """What ``pattern`` finds in ``name``. DataError D162 where it finds nothing."""
    found = pattern.search(name)
    if found is None or not found.group(1):
        raise DataError(
            162, where, f"no class in {name!r}", "correct input.label_pattern, or remove the item"
        )
    return found.group(1)


def number_classes(
    names: Sequence[str], classes: Sequence[str] | None, where: str
) -> tuple[list[int], list[str]]:
    """(a number for each of ``names``, the classes): those of ``classes`` in their order, or all names in byte order.

    DataError D161 lists names that ``classes`` lacks.
    """
    found = sorted(set(names), key=os.fsencode)
    known = check_classes(found, classes, where)
    numbers = {name: number for number, name in enumerate(known)}
    return [numbers[name] for name in names], known


def label_column(
    texts: Sequence[str], classes: Sequence[str] | None, path: str, place: Callable[[int], str]
) -> tuple[list[int], list[str]]:
    """Return a label for each text of a table's column, and the classes.

    If all are integers they are labels as they are, gaps and all: "10" is 10. ``classes`` then
    names them, unless the integers are names in it. Other texts are names, as in ``number_classes``.

    Args:
        texts: a cell of the column for each row, at least one.
        classes: all classes in the order of their numbers; None: as found.
        path: the table, for errors.
        place: what to call a row in an error.

    Raises:
        DataError: D161 for what ``classes`` lacks; D162 for a negative or a huge integer.

    """
    integers = [text.strip() for text in texts]
    is_named = classes is not None and set(texts) <= {str(name) for name in classes}
    if is_named or not all(map(INTEGER.fullmatch, integers)):
        return number_classes(texts, classes, path)
    for row, text in enumerate(integers):
        if text.startswith("-") or len(text) > len(str(MOST_CLASSES)) or int(text) >= MOST_CLASSES:
            what = (
                f"the label {text[:40]} numbers no class: it must be from 0 to {MOST_CLASSES - 1}"
            )
            fix = (
                "correct it, or keep it as a plain number: input.columns={image: path, label: int}"
            )
            raise DataError(162, place(row), what, fix)
    labels = [int(text) for text in integers]
    return labels, numbered_classes(max(labels), classes, path)


def check_classes(found: Iterable[str], classes: Sequence[str] | None, where: str) -> list[str]:
    """``classes``, or ``found`` where that is None. ConfigError C161 for a class given twice, DataError D161 for one not given."""
    if classes is None:
        return list(found)
    known = [str(name) for name in classes]
    if twice := sorted({name for name in known if known.count(name) > 1}):
        raise ConfigError(
            161, f"input.classes = {known}", f"has {', '.join(twice)} twice", "name each class once"
        )
    if strange := [name for name in found if name not in set(known)]:
        listed = ", ".join(strange[:10]) + (", ..." if len(strange) > 10 else "")
        raise DataError(
            161,
            where,
            f"{len(strange)} classes are not in input.classes: {listed}",
            "add them, or remove their items",
        )
    return known


def numbered_classes(largest: int, classes: Sequence[str] | None, where: str) -> list[str]:
    """Names for the labels 0..``largest``: ``classes``, or the numbers themselves; none where they number no classes.

    DataError D161 where ``classes`` are too few.
    """
    if classes is None:
        return [str(number) for number in range(largest + 1)] if 0 <= largest < MOST_CLASSES else []
    if largest >= len(classes):
        raise DataError(
            161,
            where,
            f"has label {largest}, but input.classes names {len(classes)}",
            "name all classes",
        )
    return check_classes((), classes, where)
