"""Start one rank of a diagnosis: ``python -m framework.commands.diagnose.start_measuring FILE``."""

import sys

from framework.cli.start_rank import begin_rank


def main(path: str) -> None:
    """Run the rank that ``FILE`` describes."""
    begin_rank(path)
    from framework.commands.diagnose.diagnose_ranks import main as run  # noqa: PLC0415

    run(path)


if __name__ == "__main__":
    main(sys.argv[1])
