import pytest
import torch

from framework.commands.export.exportable import make_exportable
from framework.contracts.prediction import PredictedTexts
from framework.errors import ConfigError


def test_the_model_alone_takes_what_it_takes_in_validation(run):
    known = make_exportable(run, None, 5, False, None)
    (images,) = known.inputs
    assert (images.dtype, tuple(images.shape)) == (torch.float32, (5, 1, 8, 8))
    assert (known.input_names, known.output_names) == (("image",), ("output",))
    assert torch.equal(known.expected[0], run.model(images))


def test_with_preprocessing_pixels_become_probabilities(run):
    known = make_exportable(run, None, 5, True, None)
    assert (known.inputs[0].dtype, known.output_names) == (torch.uint8, ("probabilities",))
    (values,) = known.module(*known.inputs)
    torch.testing.assert_close(values, known.expected[0])
    torch.testing.assert_close(values.sum(1), torch.ones(5))


def test_the_number_of_records_may_vary_unless_it_is_given(run):
    assert make_exportable(run, None, 5, False, None).dynamic_shapes is not None
    fixed = make_exportable(run, None, 5, False, 3)
    assert (len(fixed.inputs[0]), fixed.dynamic_shapes) == (3, None)


def test_predictions_that_are_no_tensor_cannot_be_exported(run, monkeypatch):
    def texts(model, batch):
        model(batch["image"])
        return PredictedTexts(["a"])

    monkeypatch.setattr(run.objective, "predict", texts, raising=False)
    with pytest.raises(ConfigError, match=r"C382.*preprocess = true"):
        make_exportable(run, None, 2, True, None)
    assert make_exportable(run, None, 2, False, None).output_names == ("output",)


def test_outputs_in_lists_and_dicts_are_flattened(run, monkeypatch):
    forward = run.model.forward

    def several(images):
        return {"logits": forward(images), "more": [images, None]}

    monkeypatch.setattr(run.model, "forward", several)
    monkeypatch.setattr(run.objective, "predict", lambda model, batch: model(batch["image"]))
    known = make_exportable(run, None, 2, False, None)
    assert known.output_names == ("output_0", "output_1")
