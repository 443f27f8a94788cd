"""Start one rank of a diagnosis: ``python -m framework.commands.diagnose.start_measuring FILE``."""

import os
import signal
import sys

from framework.system.stopping import die_with_parent, set_all


def main(path: str) -> None:
    """Run the rank that ``FILE`` describes, a file that its launcher holds in memory."""
    die_with_parent()
    set_all(signal.SIG_DFL)  # a diagnosis has nothing to save
    if not os.path.exists(path):  # the launcher died first
        os._exit(1)
    from framework.commands.diagnose.diagnose_ranks import main as run  # noqa: PLC0415

    run(path)


if __name__ == "__main__":
    main(sys.argv[1])
