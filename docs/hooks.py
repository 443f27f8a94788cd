"""Hooks that add the errors, files of the repository's root and the design notes to the site."""

import runpy
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "benchmarks.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}


def on_config(config: Any) -> Any:
    """List every design note in the navigation."""
    pages = next(part["Explanation"] for part in config.nav if "Explanation" in part)
    notes = sorted((ROOT / "docs" / "design").glob("*.md"))
    own = [page for page in pages if not page.startswith("design/")]
    pages[:] = [*own, *(f"design/{note.name}" for note in notes)]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie elsewhere in the repository."""
    for name, path in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Add the tables of errors, which are read from the code, to their page."""
    if page.file.src_uri != "errors.md":
        return markdown
    return markdown + runpy.run_path(str(ROOT / "docs" / "errors.py"))["tables"]()
