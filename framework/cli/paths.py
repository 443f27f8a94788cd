"""Where the configuration lives: beside the package in a checkout, inside it in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
ROOT = _PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent
CONF = ROOT / "conf"
