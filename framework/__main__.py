"""``python -m framework`` is ``paceline``."""

from framework.cli.main import main

if __name__ == "__main__":
    main()
