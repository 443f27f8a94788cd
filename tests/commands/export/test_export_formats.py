import pytest
import torch

from framework.commands.export.export_formats import (
    AotiFormat,
    SafetensorsFormat,
    TorchExportFormat,
)
from framework.commands.export.exportable import make_exportable
from framework.errors import ConfigError, ResourceError


def assert_same(form, run, known, path, counts=(4, 3, 1)):
    """Check that the file computes what the model computes, for any number of records."""
    form.check()
    form.write(run, known, path)
    compute = form.read(run, known, path)
    for count in counts:
        (output,) = compute([tensor[:count] for tensor in known.inputs])
        torch.testing.assert_close(output, known.expected[0][:count])


@pytest.mark.parametrize("preprocess", [False, True])
def test_a_saved_graph_computes_the_same_for_any_number_of_records(run, tmp_path, preprocess):
    known = make_exportable(run, None, 4, preprocess, None)
    assert_same(TorchExportFormat(), run, known, tmp_path / "model.pt2")


def test_weights_in_safetensors_are_those_of_the_model(run, tmp_path):
    known = make_exportable(run, None, 4, False, None)
    assert_same(SafetensorsFormat(), run, known, tmp_path / "model.safetensors")


@pytest.mark.slow
def test_a_compiled_graph_computes_the_same_for_any_number_of_records(run, tmp_path):
    known = make_exportable(run, None, 4, True, None)
    assert_same(AotiFormat(), run, known, tmp_path / "model.pt2")


def test_a_graph_for_one_size_takes_that(run, tmp_path):
    known = make_exportable(run, None, 9, False, 4)
    assert_same(TorchExportFormat(), run, known, tmp_path / "model.pt2", counts=(4,))


def test_a_model_that_cannot_be_traced_is_an_error_of_one_line(run, tmp_path, monkeypatch):
    forward = run.model.forward
    monkeypatch.setattr(
        run.model, "forward", lambda images: forward(images) if images.sum() > 0 else images
    )
    known = make_exportable(run, None, 4, False, None)
    with pytest.raises(ConfigError, match=r"C383.*to = torch_export.*batch_size=N"):
        TorchExportFormat().write(run, known, tmp_path / "model.pt2")


def test_without_a_compiler_that_is_said_before_anything_is_traced(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ResourceError, match=r"R193.*no compiler here.*to=torch_export"):
        AotiFormat().check()
