"""The console script, and ``python -m framework``."""

import os
import sys

from framework.system.stopping import install


def main() -> None:
    """Run ``paceline``."""
    if sys.argv[1:2] != ["watch"]:  # a script's own processes begin as without it
        # ranks and workers import nothing from the present folder
        os.environ.setdefault("PYTHONSAFEPATH", "1")
    install()  # signals have their meaning before anything large is imported
    from framework.main import main as run  # noqa: PLC0415

    run()


if __name__ == "__main__":
    main()
