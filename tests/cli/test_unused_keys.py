"""A typed key that nothing would read is refused, and one in a recipe is not."""

import re
from pathlib import Path

import pytest

from tests.cli.command import config_of, refusal_of


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("optim.reference_batch_size=4", "optim.reference_batch_size = 4: is not used without"),
        ("max_skips=3", "max_skips = 3: no step is skipped; add on_nan=skip"),
        ("resume.allow=[seed]", r"resume.allow = \['seed'\]: nothing is resumed; add resume=RUN"),
        ("dataset=d data.train=a.h5 data.val=b.h5", "dataset = d: is not used, because"),
        ("source=f data.train=a.h5", "source = f: is used only by recipes that pack it"),
        ("batch_size=20 rank_batch_size=10", "batch_size = 20: is replaced by rank_batch_size"),
        ("data.val=null val_batch_size=7", "val_batch_size = 7: there is no validation"),
        ("data.val=null data.val_transform=center_crop", "data.val_transform = .*no validation"),
        (
            "augment=crop_flip augment.padding=0 augment.padding_mode=reflect",
            ".*: no image is padded",
        ),
        ("augment=crop_flip augment.flip=0 augment.alternate=true", ".*: no image is mirrored"),
        ("order=block shuffle=false order.window_blocks=2", "order.window_blocks = 2: no blocks"),
        ("order.window_blocks=4", "order.window_blocks = 4: no blocks are shuffled"),
        ("workers.num=0 workers.kind=process", "workers.kind = process: there are no workers"),
        ("+data.stagee=ram", "data.stagee: nothing reads it"),
        (
            "verify=always data=dataset allow_targets=[mine] data.train={_target_:mine.Clips}",
            "verify = always",
        ),
    ],
    ids=lambda text: text[:40],
)
def test_a_typed_key_that_nothing_reads_is_refused(words, line):
    assert re.search(rf"C210\]: {line}", refusal_of(*words.split()))


def test_a_key_that_counts_or_that_a_recipe_sets_is_taken():
    config_of("optim.reference_batch_size=4", "optim.scaling=linear")
    config_of("max_skips=3", "on_nan=skip")
    config_of("dataset=d", "data.train=a.h5", "data.val=${dataset}/b.h5")
    Path("conf/recipes").mkdir(parents=True)
    Path("conf/recipes/mine.yaml").write_text("# @package _global_\nmax_skips: 3\n")
    config_of("recipes=mine", "data.train=a.h5", config_dir="conf")
