"""Start a rank that trains: ``python -m framework.cli.start_rank FILE``.

Signals get their meaning before anything large is imported.
"""

import os
import signal
import sys

from framework.system.stopping import die_with_parent, set_all


def begin_rank(path: str) -> None:
    """Let this process end with its launcher, which holds the file ``path`` in memory."""
    die_with_parent()
    set_all(signal.SIG_DFL)  # there is nothing to save before the first step
    # The launcher may have died before the kernel knew that this process must die with it.
    if not os.path.exists(path):
        os._exit(1)


def main(path: str) -> None:
    """Run the rank that ``FILE`` describes."""
    begin_rank(path)
    from framework.cli.run_ranks import main as run  # noqa: PLC0415

    run(path)


if __name__ == "__main__":
    main(sys.argv[1])
