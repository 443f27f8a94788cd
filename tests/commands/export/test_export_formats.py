import pytest
import torch

from framework.commands.export.export import FORMATS
from framework.commands.export.export_formats import (
    check_format,
    make_exportable,
    read_export,
    write_export,
)
from framework.contracts.prediction import PredictedTexts
from framework.errors import ConfigError, ResourceError


@pytest.mark.parametrize(
    ("to", "preprocess", "batch_size", "counts"),
    [
        ("torch_export", False, None, (4, 3, 1)),
        ("torch_export", True, None, (4, 3, 1)),
        ("torch_export", False, 4, (4,)),
        ("onnx", False, None, (4, 3, 1)),
        ("onnx", True, None, (4, 3, 1)),
        ("safetensors", False, None, (4, 3, 1)),
        pytest.param("aoti", True, None, (4, 3, 1), marks=pytest.mark.slow),
    ],
)
def test_the_file_computes_what_the_model_does(run, tmp_path, to, preprocess, batch_size, counts):
    path = tmp_path / f"model{FORMATS[to]}"
    known = make_exportable(run, None, 4, preprocess, batch_size)
    check_format(to)
    write_export(to, run, known, path)
    compute = read_export(to, run, path)
    for count in counts:
        (output,) = compute([tensor[:count] for tensor in known.inputs])
        torch.testing.assert_close(output, known.expected[0][:count])


def test_tensors_of_onnx_have_names(run, tmp_path):
    import onnxruntime

    path = tmp_path / "model.onnx"
    write_export("onnx", run, make_exportable(run, None, 4, True, None), path)
    session = onnxruntime.InferenceSession(str(path))
    (given,), (output,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, output.name) == ("image", "tensor(uint8)", "probabilities")


def test_a_model_that_cannot_be_traced_is_an_error_of_one_line(run, tmp_path, monkeypatch):
    forward = run.model.forward
    monkeypatch.setattr(
        run.model, "forward", lambda images: forward(images) if images.sum() > 0 else images
    )
    known = make_exportable(run, None, 4, False, None)
    with pytest.raises(ConfigError, match=r"C383.*to = torch_export.*batch_size=N"):
        write_export("torch_export", run, known, tmp_path / "model.pt2")


def test_without_a_compiler_that_is_said_before_anything_is_traced(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ResourceError, match=r"R193.*no compiler here.*to=torch_export"):
        check_format("aoti")


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
