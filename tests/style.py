"""Check what a program can see of our style, and print the figures of the code base.

python -m tests.style            # list every violation; exit code 1 if there is one
python -m tests.style --table    # print the figures
"""

import argparse
import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
WIDTH = 100
BANNED_NAMES = ("found", "one")
# what reads as translated, or says a thing in words that nobody uses
PHRASES = re.compile(
    r"\bwhere (there|one|they|that|he) (is|are|has|can|does|will)\b"
    r"|\bwhere it (has|can|does|will)\b"
    r"|\bgone on with\b|\bis told\b|\ba thing to do\b|\bfrom here on\b|\bmay be said again\b"
    r"|\bnever is\b|\bfor whom\b|\bwhat became of\b|\bbegin anew\b",
    re.IGNORECASE,
)
# "``name``: explanation" inside a paragraph; more than two of them belong into a list
FIELD = re.compile(r"``\w+``(, ``\w+``)*:")
# a function's docstring that begins with one of these is no verb phrase
NO_VERB = re.compile(
    r"(A|All|An|As|Each|Every|How|In|It|Many|No|Nothing|Of|One|Some|That|The|Those|To|Two|What"
    r"|Where|Whether|Who)\b"
)
SECTIONS = ("Args:", "Attributes:", "Returns:", "Raises:")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Violation(NamedTuple):
    """A line that breaks a rule."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        where = f"{self.path.relative_to(ROOT)}:{self.line}"
        return f"{where}: {self.rule}: {self.text.strip()[:100]}"


def python_files(*folders: str) -> list[Path]:
    """Return the Python files below the folders."""
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in paths if "__pycache__" not in path.parts)


def violations(path: Path) -> Iterator[Violation]:
    """Yield what a program can see in a file of Python."""
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > WIDTH and not any(word in line for word in ("http", "noqa", "pyright")):
            yield Violation(path, number, "long line", line)
        if phrase := PHRASES.search(line):
            yield Violation(path, number, "phrase", phrase.group())
    for node in ast.walk(ast.parse(text)):
        yield from _of_node(path, node)


def _of_node(path: Path, node: ast.AST) -> Iterator[Violation]:
    if isinstance(node, ast.IfExp) and is_nested(node):
        yield Violation(path, node.lineno, "nested conditional", ast.unparse(node))
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in BANNED_NAMES:
        yield Violation(path, node.lineno, "variable name", node.id)
    if isinstance(node, ast.arg) and node.arg in BANNED_NAMES:
        yield Violation(path, node.lineno, "argument name", node.arg)
    if isinstance(node, Function) and PHRASES.search(node.name.replace("_", " ")):
        yield Violation(path, node.lineno, "function name", node.name)
    if isinstance(node, Function) and _describes_a_thing(node):
        yield Violation(
            path, node.lineno, "docstring without a verb", ast.get_docstring(node) or ""
        )
    if isinstance(node, Documented):
        doc = ast.get_docstring(node) or ""
        listed = "\n- " in doc or any(section in doc for section in SECTIONS)
        if len(FIELD.findall(doc)) > 2 and not listed:
            line = 1 if isinstance(node, ast.Module) else node.lineno
            yield Violation(path, line, "docstring without a list", doc.splitlines()[0])


def _describes_a_thing(node: Function) -> bool:
    """Return whether a docstring says what a function is, in place of what it does.

    Properties are things. The sentence of a test's name says what it does.
    """
    if node.name.startswith("test_") or not NO_VERB.match(ast.get_docstring(node) or ""):
        return False
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    return not any("property" in name or name.endswith(".setter") for name in decorators)


def is_nested(node: ast.IfExp) -> bool:
    """Return whether a conditional expression holds another one."""
    return any(isinstance(part, ast.IfExp) for part in (node.body, node.orelse, node.test))


def table() -> list[tuple[str, str, str]]:
    """Return what is measured, its figure, and the target."""
    files = python_files("framework")
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    lengths = sorted(n.end_lineno - n.lineno + 1 for n in nodes if isinstance(n, Function))
    conditionals = [node for node in nodes if isinstance(node, ast.IfExp)]
    nested = sum(is_nested(node) for node in conditionals)
    classes = Counter(
        node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    )
    wide = sum(len(line) > WIDTH for line in lines) / len(lines)
    loose = sum(path.parent == ROOT / "framework" and path.stem[0] != "_" for path in files)
    rate = 1000 * len(conditionals) / len(lines)
    p90 = lengths[int(0.9 * len(lengths))]
    twice = sum(count > 1 for count in classes.values())
    return [
        ("Python lines in framework/", f"{len(lines):,}", "at most 20,000"),
        ("loose modules", str(loose), "at most 4"),
        ("stems that occur twice", str(len(repeated_stems(files))), "0"),
        ("class names that occur twice", str(twice), "0"),
        ("function length, median", f"{statistics.median(lengths):g}", "at most 7"),
        ("function length, p90", str(p90), "at most 18"),
        ("lines over 100 columns", f"{100 * wide:.1f} %", "under 1 %"),
        ("conditional expressions per 1,000 lines", f"{rate:.1f}", "at most 10"),
        ("nested conditional expressions", str(nested), "0"),
    ]


def repeated_stems(files: list[Path]) -> list[str]:
    """Return stems that occur twice, except those that name choices of groups."""
    choices = {(path.parent.name, path.stem) for path in (ROOT / "conf").glob("*/*.yaml")}
    others = Counter(
        path.stem
        for path in files
        if path.stem[0] != "_" and (path.parent.name, path.stem) not in choices
    )
    return [stem for stem, count in others.items() if count > 1]


def main() -> int:
    """Print violations or the table. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="print the figures of the code base")
    parser.add_argument("--count", action="store_true", help="count violations by rule and folder")
    arguments = parser.parse_args()
    if arguments.table:
        for what, figure, target in table():
            print(f"{what:42} {figure:>10}   {target}")
        return 0
    paths = [
        *python_files("framework", "examples", "tests", "benchmarks", "docs"),
        *ROOT.glob("*.py"),
    ]
    broken = [violation for path in paths for violation in violations(path)]
    if arguments.count:
        print(*Counter(violation.rule for violation in broken).items(), sep="\n")
        return 0
    print(*broken, sep="\n")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
