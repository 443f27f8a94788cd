import numpy as np
import pytest
import torch

from framework.commands.export.exportable import make_exportable
from framework.commands.export.onnx_format import OnnxFormat


@pytest.mark.parametrize("preprocess", [False, True])
def test_onnx_runtime_computes_the_same_for_any_number_of_records(run, tmp_path, preprocess):
    import onnxruntime

    form, path = OnnxFormat(), tmp_path / "model.onnx"
    known = make_exportable(run, None, 4, preprocess, None)
    form.check()
    form.write(run, known, path)
    session = onnxruntime.InferenceSession(str(path))
    (given,), (output,) = session.get_inputs(), session.get_outputs()
    types = ("tensor(uint8)", "probabilities") if preprocess else ("tensor(float)", "output")
    assert (given.name, given.type, output.name) == ("image", *types)
    for count in (4, 3, 1):
        images = known.inputs[0][:count]
        (values,) = session.run(None, {"image": images.numpy()})
        np.testing.assert_allclose(values, known.expected[0][:count].numpy(), atol=1e-5)
        (same,) = form.read(run, known, path)([images])
        assert torch.equal(same, torch.from_numpy(values))
