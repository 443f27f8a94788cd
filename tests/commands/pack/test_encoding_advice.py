"""``paceline pack advise=true``."""

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("words", "refused", "measured"),
    [
        (["pack.encode=raw", "pack.layout=hwc"], ["keep", "jpeg", "png"], ["raw"]),
        (["pack.encode=jpeg", "pack.quality=80"], [], ["keep", "jpeg", "png", "raw"]),
    ],
)
def test_an_option_of_one_encoding_does_not_keep_the_others_from_being_measured(
    words, refused, measured
):
    many_images(40, size=(32, 32))
    Path("mine").mkdir()
    words = ["--config-dir", "mine", "input.path=many", "output.path=x.h5", *words]
    done = paceline("pack", *words, "advise=true")
    assert done.code == 0, done.err
    lines = {line.split()[0]: line for line in done.out.splitlines() if line.split()}
    assert [name for name in lines if "not possible" in lines[name]] == refused
    assert all("not possible" not in lines[name] for name in measured)
    assert "paceline pack --config-dir mine input.path=many" in done.out
