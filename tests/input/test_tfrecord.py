import sys
from pathlib import Path

import numpy as np
import pytest

from framework.errors import ConfigError, DataError, ResourceError
from framework.input.tfrecord import TFRecordInput
from tests.contract.cases import jpeg

tfrecord = pytest.importorskip("tfrecord")
FEATURES = {"image": "image/encoded", "label": "image/class/label"}


def _write(path, examples):
    writer = tfrecord.TFRecordWriter(path)
    for example in examples:
        writer.write(example)
    writer.close()
    return path


def _example(number, **more):
    return {"image/encoded": (jpeg(number), "byte"), "image/class/label": (number, "int"), **more}


def _input(examples=None, features=None, classes=None):
    examples = [_example(1), _example(0)] if examples is None else examples
    return TFRecordInput(_write("x.tfrecord", examples), features or FEATURES, classes)


def _all(source):
    return source.read(0, source.manifest.num_records)


def test_examples_become_records():
    source = _input()
    records, keys = _all(source)
    assert records["image"] == [jpeg(1), jpeg(0)]
    assert (records["label"].tolist(), records["label"].dtype) == ([1, 0], np.int64)
    assert keys == ["x.tfrecord:0", "x.tfrecord:1"]
    assert source.manifest.fields["image"].encoding == "image"


def test_a_label_of_words_is_numbered_by_the_given_classes():
    features = {"image": "image/encoded", "label": "text"}
    source = _input([_example(0, text=(b"dog", "byte"))], features, ["cat", "dog"])
    assert _all(source).records["label"].tolist() == [1]
    assert source.manifest.classes == ["cat", "dog"]
    with pytest.raises(DataError, match=r"D161.*'dog' is not in input\.classes"):
        _all(_input([_example(0, text=(b"dog", "byte"))], features))


@pytest.mark.parametrize(
    ("examples", "features", "words"),
    [
        (
            [_example(0)],
            {"x": "gone"},
            r"D167.*x\.tfrecord: record 0.*no feature 'gone', but image/class/label, image/encoded",
        ),
        (
            [_example(0, n=([1, 2], "int")), _example(1, n=([1], "int"))],
            {"n": "n"},
            r"D167.*int64 \(\).*int64 \(2,\).*'input\.kinds=\{n: ragged\}'",
        ),
        ([_example(0, text=(b"hello", "byte"))], {"x": "text"}, r"D106.*not a readable image"),
        ([], FEATURES, r"D110.*no record"),
    ],
)
def test_what_does_not_fit_is_named(examples, features, words):
    with pytest.raises(DataError, match=words):
        _all(_input(examples, features))


@pytest.mark.parametrize("features", [None, {}, "image", ["image"]])
def test_features_must_be_named(features):
    with pytest.raises(ConfigError, match=r"C162.*input\.features"):
        TFRecordInput("x", features, None)


@pytest.mark.parametrize("part", [0.01, 0.4, 0.99])
def test_a_truncated_file_is_named(part):
    data = Path(_write("x.tfrecord", [_example(0), _example(1)])).read_bytes()
    Path("x.tfrecord").write_bytes(data[: int(len(data) * part)])
    with pytest.raises(DataError, match=r"D166.*x\.tfrecord.*truncated"):
        _all(TFRecordInput("x.tfrecord", FEATURES, None))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tfrecord", None)
    Path("x").write_bytes(b"")
    words = r"R160.*pip install crc32c protobuf 'tfrecord>=1\.14'"
    with pytest.raises(ResourceError, match=words):
        _ = TFRecordInput("x", {"a": "b"}, None).manifest
