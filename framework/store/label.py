"""The numbers of classes: one rule for all inputs, and for stores of other programs' files.

``group`` is where the options stand, for errors: ``input`` for packing, or ``data``.
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence

from framework.errors import ConfigError, DataError, listed

INTEGER = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)  # 007 is a name
MOST_CLASSES = 100_000  # larger labels number no class; ImageNet-21k has 21,841


def class_pattern(pattern: str | None, group: str = "input") -> re.Pattern[str] | None:
    """Compile a regular expression whose one group is a class; None stays. ConfigError C160."""
    if pattern is None:
        return None
    return pattern_of_group(pattern, f"{group}.label_pattern = {pattern}", 160)


def pattern_of_group(pattern: str, where: str, number: int) -> re.Pattern[str]:
    """Compile a regular expression with one group. ConfigError ``number`` if it is not one."""
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        what = f"not a regular expression ({error})"
        raise ConfigError(number, where, what, "correct it") from error
    if compiled.groups != 1:
        fix = r"put brackets around what is wanted, as in '^(n\d+)_'"
        raise ConfigError(number, where, f"has {compiled.groups} groups, not one", fix)
    return compiled


def class_in(name: str, pattern: re.Pattern[str], where: str, group: str = "input") -> str:
    """Return the class that ``pattern`` finds in ``name``. DataError D162 if it finds none."""
    match = pattern.search(name)
    if match is None or not match.group(1):
        fix = f"correct {group}.label_pattern, or remove the item"
        raise DataError(162, where, f"no class in {name!r}", fix)
    return match.group(1)


def number_classes(
    names: Sequence[str], classes: Sequence[str] | None, where: str, group: str = "input"
) -> tuple[list[int], list[str]]:
    """Return a number for each of ``names``, and the classes in the order of their numbers.

    Without ``classes`` all names are classes, in byte order.

    Raises:
        DataError: D161 for names that ``classes`` lacks.
    """
    known = check_classes(sorted(set(names), key=os.fsencode), classes, where, group)
    numbers = {name: number for number, name in enumerate(known)}
    return [numbers[name] for name in names], known


def _raise(_: int, error: DataError) -> None:
    raise error


def label_column(
    texts: Sequence[str],
    classes: Sequence[str] | None,
    path: str,
    place: Callable[[int], str],
    group: str = "input",
    refuse: Callable[[int, DataError], None] = _raise,
) -> tuple[list[int], list[str]]:
    """Return a label for each text of a table's column, and the classes.

    If all texts are integers, they are the labels, with gaps: "10" is 10. ``classes`` then names
    them, unless the integers are names in it. Other texts are names, as in ``number_classes``.

    Args:
        texts: A cell of the column for each row, at least one.
        classes: All classes in the order of their numbers; None: those of the column.
        path: The table, for errors, in which ``place`` names a row.
        place: Returns the name of a row.
        group: Where the options stand.
        refuse: Called with a row and its error; the row's label is 0 if this does not raise it.

    Raises:
        DataError: D161 for a class that ``classes`` lacks; D162 for a negative or a huge integer.
    """
    integers = [text.strip() for text in texts]
    is_named = classes is not None and set(texts) <= {str(name) for name in classes}
    if is_named or not all(map(INTEGER.fullmatch, integers)):
        return number_classes(texts, classes, path, group)
    labels: list[int] = []
    for row, text in enumerate(integers):
        label = text
        if text.startswith("-") or len(text) > len(str(MOST_CLASSES)) or int(text) >= MOST_CLASSES:
            what = f"the label {text[:40]} numbers no class: must be from 0 to {MOST_CLASSES - 1}"
            fix = (
                "correct it; a plain number needs a field of another name, "
                "or in a table input.columns={label: int, ...}"
            )
            refuse(row, DataError(162, place(row), what, fix))
            label = "0"
        labels.append(int(label))
    return labels, numbered_classes(max(labels), classes, path, group)


def check_classes(
    present: Iterable[str], classes: Sequence[str] | None, where: str, group: str = "input"
) -> list[str]:
    """Return ``classes``, or ``present`` if ``classes`` is None.

    Raises:
        ConfigError: C161 for a class that ``classes`` names twice.
        DataError: D161 for a present class that ``classes`` lacks.
    """
    if classes is None:
        return list(present)
    known = [str(name) for name in classes]
    if twice := sorted({name for name in known if known.count(name) > 1}):
        what = f"has {', '.join(twice)} twice"
        raise ConfigError(161, f"{group}.classes = {known}", what, "name each class once")
    if unknown := [name for name in present if name not in set(known)]:
        what = f"{len(unknown)} classes are not in {group}.classes: {listed(unknown)}"
        raise DataError(161, where, what, "add them, or remove their items")
    return known


def numbered_classes(
    largest: int, classes: Sequence[str] | None, where: str, group: str = "input"
) -> list[str]:
    """Return names for the labels 0..``largest``: ``classes``, or the numbers themselves.

    A negative or a huge number is not a class, and has no name.

    Raises:
        DataError: D161 if ``classes`` are too few.
    """
    if classes is None and largest >= MOST_CLASSES:
        return []
    if classes is None:
        return list(map(str, range(largest + 1)))
    if largest >= len(classes):
        what = f"has label {largest}, but {group}.classes names {len(classes)}"
        raise DataError(161, where, what, "name all classes")
    return check_classes((), classes, where, group)
