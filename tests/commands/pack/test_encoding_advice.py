"""``paceline pack advise=true``."""

import re
from pathlib import Path

from tests.cli.command import paceline
from tests.commands.pack.test_pack import many_images


def test_advice_measures_and_packs_nothing():
    done = paceline(
        "pack", *many_images(100)[:1], "pack.size=[32,32]", "output.path=x.h5", "advise=true"
    )
    assert done.code == 0, done.err
    assert "measured on 100 of 100 items" in done.out
    assert re.search(r"^raw .*\d", done.out, re.MULTILINE)
    command = done.out.strip().splitlines()[-1]
    assert command.startswith(
        "paceline pack input.path=many 'pack.size=[32,32]' output.path=x.h5 pack.encode="
    )
    assert not list(Path().glob("x.h5*"))
