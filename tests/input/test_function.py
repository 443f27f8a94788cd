from pathlib import Path

import numpy as np
import pytest

from framework.errors import DataError
from framework.input.function import FunctionInput
from tests.contract.cases import jpeg


def chunks(item, size=2):
    """Yield the numbers below ``item`` as records of ``size`` numbers. A short rest is dropped."""
    for start in range(0, item - size + 1, size):
        yield {"x": np.arange(start, start + size, dtype=np.float32), "number": start}


def of_file(path):
    data = Path(path).read_bytes()
    return {"image": memoryview(data), "label": len(data) % 2}


def odd(item):
    """Return or raise what packing must survive, or report in one line."""
    cases = {
        "raise": lambda: 1 // 0,
        "late": lambda: (chunk if chunk["number"] < 2 else 1 // 0 for chunk in chunks(6)),
        "number": lambda: [5],
        "text": lambda: [{"x": "words", "number": 0}],
        "fields": lambda: [{"x": np.zeros(2, np.float32)}],
        "shape": lambda: [{"x": np.zeros(3, np.float32), "number": 0}],
        "data": lambda: (_ for _ in ()).throw(DataError(106, "there", "is bad", "mend it")),
        "good": lambda: chunks(2),
    }
    return cases[item]()


def _input(call=chunks, path=None, items=None, classes=None):
    return FunctionInput(f"mine.{getattr(call, '__name__', 'f')}", call, path, items, classes)


def test_an_item_gives_zero_or_more_records():
    records, keys = _input(items=[4, 1, 2]).read(0, 3)
    assert records["x"].tolist() == [[0, 1], [2, 3], [0, 1]]
    assert records["number"].tolist() == [0, 2, 0]
    assert keys == ["4", "4#1", "2"]


def test_files_are_items_and_bytes_are_images():
    Path("in/a").mkdir(parents=True)
    for number in range(3):
        Path(f"in/a/{number}.jpg").write_bytes(jpeg(number))
    source = _input(of_file, path="in", classes=["even", "odd"])
    records, keys = source.read(0, 3)
    assert keys == ["a/0.jpg", "a/1.jpg", "a/2.jpg"]
    assert records["image"] == [jpeg(0), jpeg(1), jpeg(2)]
    assert records["label"].tolist() == [len(jpeg(number)) % 2 for number in range(3)]
    assert source.manifest.classes == ["even", "odd"]
    assert source.manifest.fields["image"].encoding == "image"
    assert _input(of_file, path="in/*/[12].jpg").read(0, 2).keys == ["in/a/1.jpg", "in/a/2.jpg"]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (
            "raise",
            (
                r"U100.*test_function\.py:\d+: in odd\..*: "
                r"ZeroDivisionError: integer division.* \(raise\)"
            ),
        ),
        ("late", r"U100.*in odd\..*: ZeroDivisionError: .*\(late\)"),
        ("number", r"D168.*number"),
        ("text", r"D167.*text: x: is str, but the first record has float32 \(2,\)"),
        ("fields", r"D167.*fields has the fields x, but the first record has number, x"),
        ("shape", r"D167.*shape: x: is float32 \(3,\), but the first record has float32 \(2,\)"),
        ("data", r"D106.*there: is bad"),
    ],
)
def test_a_bad_item_is_named_with_what_went_wrong(item, words):
    source = _input(odd, items=["good", item])
    with pytest.raises(DataError, match=words.replace(" has", ".*has")):
        source.read(1, 2)


@pytest.mark.parametrize(
    ("path", "items", "number"),
    [(None, [], 110), (None, 0, 110), ("gone", None, 101), (".", None, 101)],
)
def test_no_items_are_an_error(path, items, number):
    Path("empty").mkdir()
    with pytest.raises(DataError, match=f"D(110|{number})"):
        _ = _input(path=path, items=items).manifest


def scene(item):
    """Return a scene whose boxes, joints and other values are as many as ``item`` says."""
    return {
        "boxes": [[0, 1, 2, 3]] * item,
        "joints": np.ones((item, 5, 3)),
        "speech": np.arange(item, dtype=np.int16),
        "caption": "ü" * item,
        "file": bytes(item),
        "key": f"scene {item}",
    }


KINDS = {"boxes": "boxes", "joints": "points", "speech": "ragged", "file": "bytes"}


def test_values_of_any_length_have_a_kind():
    source = _input(scene, items=[0, 2])
    source.kinds = KINDS
    records, keys = source.read(0, 2)
    fields = source.manifest.fields
    assert fields["boxes"].kind == "boxes"
    assert fields["speech"].shape == (None,)
    assert (fields["joints"].kind, fields["joints"].shape) == ("points", (None, 5, 3))
    assert [array.tolist() for array in records["boxes"]] == [[], [[0, 1, 2, 3]] * 2]
    assert records["boxes"][0].dtype == np.float32
    assert [bytes(text).decode() for text in records["caption"]] == ["", "üü"]
    assert [bytes(file) for file in records["file"]] == [b"", b"\0\0"]
    assert [array.tolist() for array in records["speech"]] == [[], [0, 1]]
    assert keys == ["scene 0", "scene 2"]
