from framework.diagnosis.facts import Repack, Verdict

REPACK = Repack(
    "folder",
    {"train": ("my photos", "packed"), "val": ("val", "val-packed")},
    "hdf5",
    {"encode": "raw", "size": [64, 64]},
)


def test_packing_is_a_command_for_each_split():
    train, val = REPACK.commands()
    assert train == [
        "pack",
        "input=folder",
        'input.path="my photos"',
        "pack.encode=raw",
        "pack.size=[64,64]",
        "output=hdf5",
        "output.path=packed.h5",
    ]
    assert val[2] == "input.path=val"
    assert val[-1] == "output.path=val-packed.h5"


def test_training_reads_what_was_packed():
    verdict = Verdict("r", "s", "w", 2.0, ("workers.num=2",), REPACK)
    assert verdict.words == [
        "data=hdf5",
        "data.train=packed.h5",
        "data.val=val-packed.h5",
        "workers.num=2",
    ]


def test_several_validation_sets_are_packed_one_by_one():
    val = {"val.a": ("a", "a-packed"), "val.b": ("b", "b-packed")}
    repack = Repack("folder", {"train": ("photos", "packed"), **val})
    assert len(repack.commands()) == 3
    assert repack.overrides()[1:] == [
        "data.train=packed.h5",
        "data.val={a:a-packed.h5,b:b-packed.h5}",
    ]
