import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from framework.errors import ConfigError, DataError
from framework.input.tar import TarInput
from tests.contract.cases import jpeg
from tests.store.test_foreign import npy

PAIR = [("a/1.jpg", jpeg(1)), ("a/1.cls", b"2\n"), ("a/2.JPEG", jpeg(2)), ("a/2.cls", b"0")]


def _shard(members, name="x.tar", kind=tarfile.PAX_FORMAT):
    """Write a shard of (name, bytes), or (name, type) if it is no file. Return its name."""
    with tarfile.open(name, "w", format=kind) as archive:
        for member, data in members:
            entry = tarfile.TarInfo(member)
            if isinstance(data, bytes):
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
            else:
                entry.type, entry.linkname = data.encode(), "a/1.jpg"
                archive.addfile(entry)
    return name


def _input(members=PAIR, path="x.tar", fields=None, classes=None, label_pattern=None, **kind):
    return TarInput(_shard(members, path, **kind), fields, classes, label_pattern)


def _all(source):
    return source.read(0, source.manifest.num_records)


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_members_of_one_name_are_a_record(kind):
    source = _input(kind=kind)
    records, keys = _all(source)
    assert keys == ["a/1", "a/2"]
    assert records["image"] == [jpeg(1), jpeg(2)]
    assert records["label"].tolist() == [2, 0]
    assert source.manifest.classes == ["0", "1", "2"]
    assert source.name(1) == "x.tar: a/2.JPEG"


def test_shards_come_in_byte_order_and_records_as_they_lie():
    _shard([("b.jpg", jpeg(0)), ("a.jpg", jpeg(1))], "train-1.tar")
    _shard([("c.jpg", jpeg(2))], "train-0.tar")
    assert _all(TarInput("train-*.tar", None, None, None)).keys == ["c", "b", "a"]
    assert _all(TarInput(".", None, None, None)).keys == ["c", "b", "a"]


def test_fields_choose_members_and_leave_the_others():
    members = [
        *(*PAIR[:2], ("a/1.seg.png", jpeg(5)), ("a/1.npy", npy(np.arange(3)))),
        *(("a/1.score.txt", b"0.5"), ("a/1.json", b"{}")),
    ]
    fields = {"image": "jpg", "mask": "seg.png", "x": ".npy", "score": "score.txt", "label": "cls"}
    records, _ = _all(_input(members, fields=fields))
    assert records["mask"] == [jpeg(5)]
    values = [records[name].tolist() for name in ("x", "score", "label")]
    assert values == [[[0, 1, 2]], [0.5], [2]]


def test_a_member_that_nobody_asked_for_is_not_ignored_without_a_word():
    with pytest.raises(ConfigError, match=r"C162.*members \.json, \.seg\.png too") as caught:
        _ = _input([*PAIR, ("a/1.json", b"{}"), ("a/1.seg.png", jpeg(0))]).manifest
    hint = "'input.fields={image: \"jpeg;jpg\", label: cls, json: json, seg: seg.png}'"
    assert hint in str(caught.value)


@pytest.mark.parametrize("letters", ["", "n"])
def test_names_with_dots_are_named_instead_of_a_field_for_each_file(letters):
    members = [(f"v1.{letters}{n}.jpg", jpeg(0)) for n in range(30)]
    with pytest.raises(ConfigError, match=r"C162.*a key ends at the first dot"):
        _ = _input(members).manifest


@pytest.mark.parametrize(
    "fields", [{"image": "jpg", "x": "json"}, {"x": "pyd"}, {}, ["jpg"], "jpg"]
)
def test_members_that_cannot_be_read_are_refused(fields):
    with pytest.raises(ConfigError, match=r"C162.*input\.fields"):
        _ = _input(fields=fields).manifest


def test_texts_json_and_other_files_are_strings():
    members = [*PAIR, *[(f"a/{n}.txt", text) for n, text in ((1, b"a dog"), (2, b"7"))]]
    members += [(f"a/{n}.json", b'{"n": %d}' % n) for n in (1, 2)]
    members += [(f"a/{n}.flac", bytes([n, 0])) for n in (1, 2)]
    fields = {"image": "jpg", "caption": "txt", "about": "json", "sound": "flac"}
    members[2] = ("a/2.jpg", members[2][1])
    source = _input(members, fields=fields)
    assert {name: field.kind for name, field in source.manifest.fields.items()} == {
        "image": "image",
        "caption": "text",
        "about": "text",
        "sound": "bytes",
    }
    records = _all(source).records
    assert [bytes(text) for text in records["caption"]] == [b"a dog", b"7"]
    assert [bytes(data) for data in records["sound"]] == [b"\x01\x00", b"\x02\x00"]


@pytest.mark.parametrize("name", ["../x.jpg", "/etc/x.jpg", "a/../../x.jpg"])
def test_a_member_that_leads_out_is_refused(name):
    with pytest.raises(DataError, match=r"D165.*x\.tar: member .* leads out"):
        _ = _input([*PAIR, (name, jpeg(0))]).manifest
    assert sorted(path.name for path in Path().iterdir()) == ["x.tar"]


def test_links_and_devices_are_left_out_and_counted():
    kinds = [
        kind.decode()
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
    ]
    members = [("dir", tarfile.DIRTYPE.decode()), *PAIR, ("README", b"hello")]
    source = _input([*members, *((f"l{kind}.jpg", kind) for kind in kinds)])
    assert source.manifest.num_records == 2
    assert "(5 members left out" in source.manifest.source


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (PAIR[:3], r"D167.*a/2\.JPEG has 0 members for label \(\.cls\)"),
        ([*PAIR, ("a/1.png", jpeg(0))], r"D163.*several members for image"),
        ([*PAIR, ("a/1.jpg", jpeg(0))], r"D163.*a/1\.jpg' twice"),
        ([("a.jpg", jpeg(0)), ("a.cls", b"  ")], r"D162.*label is empty"),
        ([], r"D110.*no file inside"),
    ],
)
def test_what_is_no_record_is_named(members, words):
    with pytest.raises(DataError, match=words.replace(" has", ".*has")):
        _all(_input(members))
