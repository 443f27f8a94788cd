"""Print the tables of errors from the code: ``python docs/errors.py``.

The site has them below the text of errors.md.

Every call ``SomeError(number, where, what, fix)`` becomes a row. Text that is known only at runtime
is shown as ``<name>``.
"""

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from pkgutil import walk_packages
from typing import NamedTuple

from framework import commands
from framework.cli.outcome import rules_of
from framework.config.schema import DATA_RULES, GROUP_RULES, TYPED, Rule, option_rules
from framework.errors import error_kinds

ROOT = Path(__file__).resolve().parents[1]
HEADINGS = {
    "C": "Configuration",
    "D": "Data",
    "K": "Checkpoints",
    "R": "Resources",
    "N": "Numbers",
    "P": "Parallel ranks",
    "U": "Your own code",
}
LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


class Row(NamedTuple):
    """One line of a table."""

    number: int
    where: str
    what: str
    fix: str


class Scope(NamedTuple):
    """Where an expression stands.

    Attributes:
        module: The module.
        functions: The functions around the expression, the innermost first.
        caller: A call of the innermost function, which says what its parameters are.
    """

    module: ast.Module
    functions: tuple[ast.FunctionDef, ...] = ()
    caller: ast.Call | None = None


def tables() -> str:
    """Return a table for each kind of error, in Markdown."""
    codes = {kind.letter: kind.exit_code for kind in error_kinds().values()}
    lines: list[str] = []
    for letter, rows in all_rows().items():
        lines += ["", f"## {letter}: {HEADINGS[letter]} (exit code {codes[letter]})", ""]
        lines += ["| number | where | what is wrong | what to do |", "| --- | --- | --- | --- |"]
        for number, *words in rows:
            lines.append(" | ".join([f"| {letter}{number}", *map(cell, words)]) + " |")
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Return text for a cell: fields as code, and no character that Markdown would obey."""
    text = " ".join(text.split()).replace("|", r"\|").replace("*", r"\*")
    return re.sub(r"((?:<\w+>)+)", r"`\1`", text)


def all_rows() -> dict[str, list[Row]]:
    """Return the rows of each kind of error by its letter, in the order of the numbers."""
    result: dict[str, set[Row]] = {letter: set() for letter in HEADINGS}
    paths = sorted((ROOT / "framework").rglob("*.py"))
    modules = [ast.parse(path.read_text()) for path in paths]
    letters = all_letters(modules)
    calls_by_module = [list(calls(module, Scope(module))) for module in modules]
    for own_calls in calls_by_module:
        for call, scope in own_calls:
            letter = letters.get(class_of(call, scope))
            if letter not in HEADINGS or len(call.args) != len(Row._fields):
                continue
            every_call = own_calls
            if isinstance(call.args[0], ast.Name):  # a function for several commands
                every_call = [pair for pairs in calls_by_module for pair in pairs]
            callers = [other for other, _ in every_call if is_call_of(other, scope.functions)]
            for caller in callers or [None]:
                known = scope._replace(caller=caller)
                columns = [texts(part, known, call.lineno) for part in call.args]
                columns[1] = texts(call.args[1], scope, call.lineno)
                rows = [row for row in product(*columns) if row[0].isdecimal()]
                result[letter] |= {Row(int(number), *words) for number, *words in rows}
    result["C"] |= set(rows_of_options())
    return {letter: sorted(rows) for letter, rows in result.items()}


def rows_of_options() -> Iterator[Row]:
    """Yield a row for the rule of every option."""
    tables = [("", rules) for rules in rules_of_commands()]
    tables += [("", option_rules(name)) for name in ("train", "pack", *TYPED)]
    tables += [("", DATA_RULES), ("optim.groups.NAME.", GROUP_RULES)]
    for prefix, rules in tables:
        for key, rule in rules.items():
            where = f"{prefix}{key} = <value>"
            yield Row(rule.number, where, f"must be {rule.words}", "correct it")


def rules_of_commands() -> Iterator[dict[str, Rule]]:
    """Yield the table ``RULES``, or the rules of the options, of every module of a command."""
    for module in walk_packages(commands.__path__, f"{commands.__name__}."):
        if not module.ispkg:
            content = vars(import_module(module.name))
            rules = content.get("RULES", {})
            if isinstance(rules, dict):
                yield rules
            for kind in content.values():
                if isinstance(kind, type) and is_dataclass(kind) and has_options(kind):
                    yield rules_of(kind)


def has_options(kind: type) -> bool:
    """Return whether the fields of a dataclass are options of a command."""
    return all("rule" in field.metadata for field in fields(kind))


def calls(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield every call below a node, with the functions around it."""
    if isinstance(node, ast.FunctionDef):
        scope = Scope(scope.module, (node, *scope.functions))
    if isinstance(node, ast.Call):
        yield node, scope
    for child in ast.iter_child_nodes(node):
        yield from calls(child, scope)


def is_call_of(call: ast.Call, functions: tuple[ast.FunctionDef, ...]) -> bool:
    """Return whether a call is one of the innermost of ``functions``, by its name."""
    name = ast.unparse(call.func).rpartition(".")[2]
    return bool(functions) and functions[0].name == name


def all_letters(modules: list[ast.Module]) -> dict[str, str]:
    """Return the letter of every error by the name of its class, wherever it is defined."""
    letters = {name: kind.letter for name, kind in error_kinds().items()}
    for module in modules:
        for node in module.body:
            if not isinstance(node, ast.ClassDef):
                continue
            bases = map(ast.unparse, node.bases)
            known = [letters[base] for base in bases if base in letters]
            if known:
                letters.setdefault(node.name, known[0])
    return letters


def class_of(call: ast.Call, scope: Scope) -> str:
    """Return the name of the class that a call makes an object of.

    A parameter of a function that is annotated with a class stands for this class.
    """
    name = ast.unparse(call.func)
    for function in scope.functions:
        for argument in function.args.args:
            if argument.arg == name and argument.annotation is not None:
                name = ast.unparse(argument.annotation).removeprefix("type[").removesuffix("]")
    return name


def texts(node: ast.expr, scope: Scope, line: int) -> list[str]:
    """Return the texts that an expression at ``line`` may have."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        return ["".join(texts(part, scope, line)[0] for part in node.values)]
    if isinstance(node, ast.IfExp):
        return texts(node.body, scope, line) + texts(node.orelse, scope, line)
    if isinstance(node, ast.BinOp):
        sides = texts(node.left, scope, line), texts(node.right, scope, line)
        return [left + right for left, right in product(*sides)]
    values = values_of(node.id, scope, line) if isinstance(node, ast.Name) else []
    known = [text for value in values for text in texts(value, scope, value.lineno)]
    return known or [placeholder(node)]


def values_of(name: str, scope: Scope, line: int) -> list[ast.expr]:
    """Return the expressions that a name may stand for at ``line``."""
    for block in (*scope.functions, scope.module):
        values = assigned(block.body, name, line)
        if values:
            return values
    return passed(name, scope)


def assigned(body: list[ast.stmt], name: str, line: float) -> list[ast.expr]:
    """Return the expressions that ``name`` may stand for when ``line`` is reached."""
    values: list[ast.expr] = []
    for statement in body:
        if statement.lineno >= line:
            break
        if isinstance(statement, ast.Assign):
            if ast.unparse(statement.targets[0]) == name:
                values = [statement.value]
            continue
        for block in blocks(statement):
            is_around = block[0].lineno <= line <= (block[-1].end_lineno or 0)
            if is_around:
                values = assigned(block, name, line) or values
            elif not isinstance(block[-1], LEAVES) or isinstance(statement, ast.Try):
                values = values + assigned(block, name, math.inf)
            if is_around:
                break
    return values


def passed(name: str, scope: Scope) -> list[ast.expr]:
    """Return the text that the caller passes for a parameter of the innermost function, if any."""
    if scope.caller is None:
        return []
    names = [argument.arg for argument in scope.functions[0].args.args if argument.arg != "self"]
    given = dict(zip(names, scope.caller.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in scope.caller.keywords}
    value = given.get(name)
    return [value] if isinstance(value, ast.Constant | ast.JoinedStr) else []


def blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the lists of statements inside a statement, but not those of a function or class."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return []
    inner = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
    handlers = [handler.body for handler in getattr(statement, "handlers", [])]
    cases = [case.body for case in getattr(statement, "cases", [])]
    return [block for block in (*inner, *handlers, *cases) if block]


def placeholder(node: ast.expr) -> str:
    """Return ``<name>`` for an expression: its first name that is not a function's."""
    called = {id(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute) and id(part) not in called:
            name = part.attr if isinstance(part, ast.Attribute) else part.id
            if name != "self":
                return f"<{name.strip('_').lower()}>"
    return "<value>"


if __name__ == "__main__":
    print(tables())
