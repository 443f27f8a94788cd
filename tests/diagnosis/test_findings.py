import shlex

from framework.diagnosis.findings import UNKNOWN, Repack, Verdict, advice_lines

REPACK = Repack(
    "folder",
    "my photos",
    "packed",
    "hdf5",
    {"encode": "raw", "size": [64, 64]},
    {"val": "val"},
    {"val": "val-packed"},
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
    val = {"val.a": "a", "val.b": "b"}, {"val.a": "a-packed", "val.b": "b-packed"}
    repack = Repack("folder", "photos", "packed", "hdf5", {}, *val)
    assert len(repack.commands()) == 3
    assert repack.overrides()[1:] == [
        "data.train=packed.h5",
        "data.val={a:a-packed.h5,b:b-packed.h5}",
    ]


def test_advice_about_a_store_packs_it_first():
    verdict = Verdict("r", "s", "w", 1.5, repack=Repack("folder", "photos", "packed"))
    lines = [line.strip() for line in advice_lines(1, verdict, lambda words: ["epochs=3", *words])]
    commands = [shlex.split(line) for line in lines if line.startswith("paceline ")]
    assert [command[1] for command in commands] == ["pack", "train"]
    assert "output.path=packed.h5" in commands[0]


def test_a_script_is_changed_in_its_code_or_by_a_command():
    edit = Verdict("fewer_workers", "s", "w", UNKNOWN, edit="DataLoader(...)")
    assert advice_lines(2, edit)[0] == "2. fewer_workers: the gain is not predictable, so try it"
    assert advice_lines(2, edit)[-1] == "   write: DataLoader(...)"
    pack = Verdict("pack_items", "s", "w", 2.0, edit="paceline pack x")
    assert advice_lines(1, pack)[0] == "1. pack_items: 2.00 times as fast (by the model)"
    assert advice_lines(1, pack)[-1] == "   type: paceline pack x"
