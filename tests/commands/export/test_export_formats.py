import pytest
import torch

from framework.commands.export.export import FORMATS
from framework.commands.export.export_formats import check_format, read_export, write_export
from framework.commands.export.exportable import make_exportable
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
    path = tmp_path / f"model{FORMATS[to] or to}"
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
