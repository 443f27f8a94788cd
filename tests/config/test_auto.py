import io
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from framework.config.auto import resolve, wrong_channels
from framework.contracts.records import ChannelStatistics, Field, Manifest
from framework.data.folder import folder_source
from framework.data.source import StoreSource
from framework.errors import ConfigError, DataError
from framework.store.open_store import open_store
from framework.store.store_facts import statistics_of
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import write_folder

CLASSES = [str(number) for number in range(7)]
IMAGE = {"image": Field("uint8", (3, 4, 4)), "label": Field("int64", ())}
STATISTICS = {"image": ChannelStatistics((0.1, 0.2, 0.3), (0.4, 0.0, 0.6))}


class Known:
    """A source that is only asked for its manifest."""

    def __init__(self, fields=None, classes=CLASSES, statistics=STATISTICS):
        self.manifest = Manifest(9, fields or IMAGE, classes, statistics=statistics)


def config(model=None, augment=None, objective=None, transform=None):
    return {
        "data": {"train": "x.h5"},
        "model": model or {},
        "objective": objective or {"input": "image", "target": "label"},
        "transform": transform or {},
        "augment": augment or {},
    }


def numbers(given, source=None):
    return resolve(given, source or Known())[1]


def test_a_model_takes_channels_and_classes_from_the_data():
    given = config({"_target_": "Net", "in_channels": "auto", "num_classes": "auto", "width": 4})
    whole, values = resolve(given, Known())
    assert values == {"model.in_channels": 3, "model.num_classes": 7}
    assert whole["model"] == {"_target_": "Net", "in_channels": 3, "num_classes": 7, "width": 4}
    assert given["model"]["in_channels"] == "auto"


def test_a_label_that_does_not_count_is_no_class():
    source = Known(classes=[str(number) for number in range(256)])
    counts = [*[3] * 5, *[0] * 250, 9]
    source.manifest = replace(source.manifest, class_counts=counts)
    objective = {"input": "image", "target": "label", "ignore_index": 255}
    given = config({"num_classes": "auto"}, objective=objective)
    assert numbers(given, source) == {"model.num_classes": 5}
    del given["objective"]["ignore_index"]
    given["objective"]["losses"] = {"ce": {"_target_": "CrossEntropyLoss", "ignore_index": 255}}
    assert numbers(given, source) == {"model.num_classes": 5}
    given["objective"]["ignore_index"] = -100
    assert numbers(given, source) == {"model.num_classes": 256}


def test_normalization_takes_the_statistics_of_its_own_field():
    block = {"field": ["image", "other"], "mean": "auto", "std": "auto"}
    auto = numbers(config(augment={"parts": {"n": block}}))
    assert auto == {"augment.parts.n.mean": [0.1, 0.2, 0.3], "augment.parts.n.std": [0.4, 1.0, 0.6]}


def test_other_keys_named_auto_are_left_alone():
    given = config(
        {"in_channels": "auto", "algorithm": "auto", "encoder": {"num_classes": "auto"}},
        {"workers": "auto"},
    )
    whole, values = resolve(given, Known())
    assert values == {"model.in_channels": 3, "model.encoder.num_classes": 7}
    assert (whole["model"]["algorithm"], whole["augment"]["workers"]) == ("auto", "auto")


def test_channels_are_those_of_the_objective_s_input():
    fields = {
        "image": Field("uint8", (3, 4, 4)),
        "noisy": Field("float32", (2, 1024)),
        "photo": Field("uint8", (8, 8, 1)),
        "signal": Field("float32", (12, 50, 1)),
    }
    channels = {"image": 3, "noisy": 2, "photo": 1, "signal": 12}
    for name, count in channels.items():
        given = config({"channels": "auto"}, objective={"input": [name, "image"]})
        assert numbers(given, Known(fields)) == {"model.channels": count}


def channels_of(**fields):
    """Return a configuration that wants the channels, and a source with these fields."""
    return config({"in_channels": "auto"}), Known(fields)


@pytest.mark.parametrize(
    ("given", "source", "line"),
    [
        (
            config({"num_classes": "auto"}),
            Known(classes=[]),
            r"model\.num_classes = auto: .*names no classes.*num_classes=10",
        ),
        (
            config({"num_classes": "auto"}, objective={"input": "image", "target": "lable"}),
            Known(classes=[]),
            r"model\.num_classes = auto: .*'lable' \(did you mean 'label'.*one of image, label",
        ),
        (
            config({"in_channels": "auto"}, objective={"input": "nothing"}),
            Known(),
            r"model\.in_channels = auto: .*no field 'nothing', .*set objective\.input=image aug",
        ),
        (
            config({"in_channels": "auto"}, objective={"input": "nothing"}),
            Known({"left": IMAGE["image"], "right": IMAGE["image"]}),
            r"model\.in_channels = auto.*no field with channels.*in_channels=3",
        ),
        (
            config({"in_channels": "auto"}, objective={"input": "label"}),
            Known(),
            r"model\.in_channels = auto",
        ),
        (
            config(augment={"field": "label", "mean": "auto"}),
            Known(),
            r"augment\.mean = auto.*'label'.*augment\.mean=\[0\.5\]",
        ),
        (
            *channels_of(image=Field("float32", (32, 24, 3))),
            r"looks like \[height, width, channels\]; change its shape to \[3, 32, 24\], or type",
        ),
        (
            *channels_of(image=Field("uint8", (28, 28))),
            r"model\.in_channels = auto: .*without an axis of channels; .* \[1, 28, 28\]",
        ),
    ],
    ids=[
        *("no classes", "no target", "no input", "two images", "label", "statistics"),
        *("channels last", "no channels"),
    ],
)
def test_a_fact_that_the_data_does_not_have_must_be_typed(given, source, line):
    with pytest.raises(ConfigError, match=rf"^error\[C157\]: .*{line}"):
        resolve(given, source)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            config({"num_classes": 6}),
            r"C154\]: model\.num_classes = 6: x\.h5 has 7 classes; leave it out, or give 7 or more",
        ),
        (
            config(augment={"parts": {"m": {"num_classes": 2}}}),
            r"C154\]: augment\.parts\.m\.num_classes = 2",
        ),
        (
            config(augment={"mean": [0.1, 0.2], "std": [1.0, 1.0]}),
            r"C156\]: augment\.mean = .* 2 numbers, 'image' has 3 channels",
        ),
        (config(augment={"mean": [0.5], "std": "auto"}), r"C156\]: augment\.mean = \[0\.5\]"),
    ],
)
def test_a_typed_value_that_contradicts_the_data_is_an_error(given, line):
    with pytest.raises(ConfigError, match=rf"^error\[{line}"):
        resolve(given, Known())


@pytest.mark.parametrize(
    ("field", "count"),
    [
        (Field("float32", ()), 1),
        (Field("float64", (5,)), 5),
        (Field("float32", (5, 2)), 7),  # no vector: the named classes
        *((Field("float32", (None, 4), "ragged"), 7), (Field("int64", (5,)), 7)),
        *((Field("uint8", (1,)), 7), (Field("bool", (5,)), 5), (Field("uint8", (5,)), 5)),
    ],
)
def test_a_model_gives_as_many_numbers_as_a_target_of_floats_or_flags_has(field, count):
    source = Known({**IMAGE, "age": field})
    given = config({"num_classes": "auto"}, objective={"input": "image", "target": "age"})
    assert numbers(given, source) == {"model.num_classes": count}


def test_a_model_that_fails_with_other_channels_is_reported():
    error = wrong_channels(config({"in_channels": 1}), Known(), "expected 1")
    words = (
        "error[C155]: model.in_channels = 1: x.h5 has 'image' with 3 channels (expected 1); "
        "leave it out"
    )
    assert words in str(error)
    assert wrong_channels(config({"in_channels": 3}), Known(), "expected 1") is None


def test_a_store_without_statistics_is_measured_when_they_are_wanted():
    store = open_store(write_store("old.h5", make_records(20)))
    with closing(StoreSource(store, make_context())) as source:
        assert store.manifest.statistics == {}
        values = numbers(config(augment={"mean": "auto", "std": "auto"}), source)
        assert values["augment.mean"] == list(statistics_of(store)["image"].mean)


@pytest.mark.parametrize(
    ("field", "meaning"),
    [
        (Field("int64", ()), "classes"),
        (Field("uint8", (1, 4, 4), kind="labels"), "classes"),
        (Field("float32", (2,)), "numbers"),
        (Field("uint8", (3, 4, 4)), "numbers"),
    ],
)
def test_whole_numbers_as_the_target_mean_that_classes_are_predicted(field, meaning):
    source = Known({"image": Field("uint8", (3, 4, 4)), "label": field})
    given = config(objective={"input": "image", "target": "label", "predicts": "auto"})
    assert numbers(given, source) == {"objective.predicts": meaning}


def weights_of(path, order=None, **changes):
    objective = {"input": "image", "target": "label", "class_weights": "balanced", **changes}
    with closing(StoreSource(open_store(path), make_context(**(order or {})))) as source:
        return numbers(config(objective=objective), source)["objective.class_weights"]


def test_balanced_weights_count_the_records_in_use():
    records = make_records(40)
    records["label"] = (np.arange(40) >= 30).astype(np.int64)
    path = write_store("x.h5", records)
    assert weights_of(path)[:2] == [pytest.approx(40 / 60, abs=1e-6), 2.0]
    assert weights_of(path, {"select": "label == 1"})[:2] == [1.0, 1.0]
    assert weights_of(path, ignore_index=1)[:2] == [1.0, 1.0]


def test_labels_that_cannot_be_counted_are_refused():
    objective = {"input": "image", "target": "label", "class_weights": "balanced"}
    with pytest.raises(ConfigError, match=r"C316.*class_weights = balanced: the labels of x.h5"):
        numbers(config(objective=objective))


def test_too_few_weights_are_refused():
    objective = {"input": "image", "target": "label", "class_weights": [1.0, 2.0]}
    line = r"C316.*class_weights = \[1.0, 2.0\]: x.h5 has 7 classes"
    with pytest.raises(ConfigError, match=line):
        numbers(config(objective=objective))


def test_an_image_that_cannot_be_read_is_the_reason_why_nothing_is_known(tmp_path):
    deep = io.BytesIO()
    Image.fromarray(np.ones((4, 4), np.uint16)).save(deep, "png")
    path = write_folder(str(tmp_path / "in"), [deep.getvalue()] * 3)
    given = config(augment={"field": "image", "mean": "auto"})
    with (
        closing(folder_source(path, context=make_context())) as source,
        pytest.raises(DataError, match=r"D106.*in/a/000\.jpg.*pack\.bit_depth"),
    ):
        resolve(given, source)
