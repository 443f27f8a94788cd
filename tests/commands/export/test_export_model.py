import hashlib
import json
import math
import os
from dataclasses import replace

import pytest
import torch

from framework.commands.export import export_model
from framework.commands.export.export import FORMATS, ExportOptions
from framework.commands.export.export_model import compare, difference, make_exportable
from framework.contracts.prediction import PredictedTexts
from framework.errors import ConfigError, ResourceError
from framework.pack.jobs import file_sha256

OPTIONS = ExportOptions("run", "torch_export", "out", num_records=4, repeats=2)


def choice(path, **changes):
    return replace(OPTIONS, output=str(path), **changes)


def test_a_folder_gets_the_model_and_its_card(run, tmp_path, capsys):
    export_model.export_model(run, choice(tmp_path / "new" / "out"))
    assert sorted(os.listdir(tmp_path / "new")) == ["out"]
    assert sorted(os.listdir(tmp_path / "new" / "out")) == ["MODEL_CARD.md", "model.pt2"]
    said = capsys.readouterr().out
    assert "in: image float32 [batch, 1, 8, 8]\nout: output float32 [batch, 10]\n" in said
    assert "largest difference: " in said


def test_a_single_record_leaves_the_batch_size_free(run, tmp_path):
    export_model.export_model(run, choice(tmp_path / "digits.pt2", num_records=1))
    module = torch.export.load(tmp_path / "digits.pt2").module()
    assert module(torch.zeros(5, 1, 8, 8))[0].shape == (5, 10)


def test_a_loss_that_the_model_returns_is_no_output():
    class Net(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x), x.mean()

    assert [out.shape for out in export_model.ModelOnly(Net(3, 2))(torch.zeros(5, 3))] == [(5, 2)]


def test_an_export_that_differs_leaves_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr("framework.commands.export.export_model.difference", lambda *_: 1.0)
    with pytest.raises(ConfigError, match="C384"):
        export_model.export_model(run, choice(tmp_path / "out"))
    assert os.listdir(tmp_path) == []


def test_a_disk_that_refuses_leaves_nothing(run, tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("framework.system.durable.sync", full)
    with pytest.raises(ResourceError, match=r"R101.*No space left"):
        export_model.export_model(run, choice(tmp_path / "out"))
    assert os.listdir(tmp_path) == []


def card(run, tmp_path, to="onnx"):
    (tmp_path / "model.onnx").write_bytes(b"model")
    known = make_exportable(run, None, 2, True, None)
    return export_model.model_card(
        run, known, ["largest difference: 0"], to, True, tmp_path / "model.onnx"
    )


def test_a_card_has_digests_metrics_configuration_and_how_to_use_it(run, tmp_path):
    text = card(run, tmp_path)
    data = json.loads((run.run_dir / "run.json").read_text())["data"]
    best = json.loads((run.run_dir / "summary.json").read_text())["best"]
    assert data["train"]["digest"] in text
    assert data["val"]["digest"] in text
    assert f"| accuracy | {best['accuracy']:.6g} |" in text
    assert "_target_: framework.model.digits_net.DigitsCNN" in text
    assert "| image | uint8 [batch, 1, 8, 8] |" in text
    assert 'session.run(None, {"image": image})' in text
    assert hashlib.sha256(b"model").hexdigest() in text
    assert f"best (sha256 {file_sha256(run.run_dir / 'checkpoints' / 'best.pt')})" in text
    run.weights = "last"
    digest = file_sha256(run.run_dir / "checkpoints" / "last.pt")
    assert f"last (sha256 {digest})" in card(run, tmp_path)


@pytest.mark.parametrize("to", export_model.USE)
def test_every_format_says_how_it_is_used(run, tmp_path, to):
    assert "```python" in card(run, tmp_path, to)


def test_no_card_has_a_password_or_breaks_its_page(run, tmp_path, monkeypatch):
    read = {
        "resolved.json": {"uri": "http://me:secret@host/x", "text": "```\n# no heading"},
        "run.json": {"command": ["train", "uri=http://me:secret@host", "a|b\x1b[2J"]},
    }
    monkeypatch.setattr("framework.system.run_dir.read_object", lambda own: read.get(own.name, {}))
    text = card(run, tmp_path)
    assert "secret" not in text
    assert "\x1b" not in text
    assert "````yaml" in text
    assert r"a\|b" in text


INPUTS = torch.arange(6.0).reshape(3, 2)


def doubled(batch_size=None):
    class Doubled(torch.nn.Module):
        def forward(self, values):
            return (values * 2,)

    return export_model.Exportable(Doubled(), (INPUTS,), (INPUTS * 2,), ("x",), ("y",), batch_size)


def test_an_export_that_computes_the_same_is_timed_in_turn_with_the_model():
    calls = []

    def runner(inputs):
        calls.append(len(inputs[0]))
        return (inputs[0] * 2 + 0.25,)

    first, second = compare(doubled(), runner, 1.0, 4)
    assert first == "largest difference: 0.25 over 3 records (tolerance 1)"
    assert second.startswith("time of 3 records: model ")
    assert second.count("ms ±") == 2
    assert calls == [3, 1] + 7 * [3]


@pytest.mark.parametrize(
    ("runner", "what"),
    [
        (lambda inputs: (inputs[0] * 2.5,), "differs from the model by 2.5"),
        (lambda inputs: (), r"shapes \[\] instead of \[\(3, 2\)\]"),
        (lambda inputs: (inputs[0].T * 2,), r"shapes \[\(2, 3\)\] instead of"),
        (lambda inputs: (inputs[0] * math.nan,), "differs from the model by inf"),
        (lambda inputs: (inputs[0][[0] * 3][: len(inputs[0])] * 2,), "differs from the model by 8"),
    ],
)
def test_an_export_that_differs_is_refused(runner, what):
    with pytest.raises(ConfigError, match=f"C384.*{what}"):
        compare(doubled(), runner, 0.001, 1)


def test_an_export_of_one_size_is_not_tried_with_another():
    def runner(inputs):
        assert len(inputs[0]) == 3
        return (inputs[0] * 2,)

    assert compare(doubled(batch_size=3), runner, 0, 1)[0].startswith("largest difference: 0 ")


@pytest.mark.parametrize(
    ("output", "expected", "result"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([math.nan, math.inf], [math.nan, math.inf], 0.0),
        ([math.nan, 0.0], [0.0, 0.0], math.inf),
        ([1, 2, 3, 4], [1, 2, 3, 5], 0.25),
        ([], [], 0.0),
    ],
)
def test_a_difference_is_the_largest_or_the_share_of_integers(output, expected, result):
    assert difference(torch.tensor(output), torch.tensor(expected)) == result


@pytest.mark.parametrize(
    ("to", "preprocess", "batch_size", "counts"),
    [
        *(("torch_export", False, None, (4, 3, 1)), ("torch_export", True, None, (4, 3, 1))),
        *(("torch_export", False, 4, (4,)), ("onnx", False, None, (4, 3, 1))),
        *(("onnx", True, None, (4, 3, 1)), ("safetensors", False, None, (4, 3, 1))),
        pytest.param("aoti", True, None, (4, 3, 1), marks=pytest.mark.slow),
    ],
)
def test_the_file_computes_what_the_model_does(run, tmp_path, to, preprocess, batch_size, counts):
    path = tmp_path / f"model{FORMATS[to]}"
    known = make_exportable(run, None, 4, preprocess, batch_size)
    export_model.check_format(to)
    export_model.write_export(to, run, known, path)
    compute = export_model.read_export(to, run, path)
    for count in counts:
        (output,) = compute([tensor[:count] for tensor in known.inputs])
        torch.testing.assert_close(output, known.expected[0][:count])


def test_tensors_of_onnx_have_names(run, tmp_path):
    import onnxruntime

    path = tmp_path / "model.onnx"
    export_model.write_export("onnx", run, make_exportable(run, None, 4, True, None), path)
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
        export_model.write_export("torch_export", run, known, tmp_path / "model.pt2")


def test_without_a_compiler_that_is_said_before_anything_is_traced(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ResourceError, match=r"R193.*no compiler here.*to=torch_export"):
        export_model.check_format("aoti")


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
    assert " [batch, " in make_exportable(run, None, 5, False, None).forms[0][2]
    fixed = make_exportable(run, None, 5, False, 3)
    assert len(fixed.inputs[0]) == 3
    assert " [3, " in fixed.forms[0][2]


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
