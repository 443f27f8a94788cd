import pytest

from tests.cli.command import is_one_error_line, paceline


def test_the_command_exports_a_run_with_preprocessing_to_onnx(run_dir, tmp_path):
    words = ("to=onnx", "output=digits.onnx", "preprocess=true", "repeats=2", "num_records=8")
    done = paceline("export", str(run_dir), *words)
    assert done.code == 0, done.err
    assert "in: image uint8 [batch, 1, 8, 8]\nout: probabilities float32 [batch, 10]" in done.out
    assert "largest difference" in done.out
    assert "onnx" not in done.err
    assert (tmp_path / "digits.onnx").stat().st_size > 10_000
    assert (tmp_path / "digits.onnx.MODEL_CARD.md").read_text().startswith("# run\n")
    again = paceline("export", str(run_dir), *words)
    assert is_one_error_line(again, "C381")


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("to=onnx",), "C103"),
        (("to=onxx", "output=x"), "C101"),
        (("to=onnx", "output=x.pt2"), "C381"),
        (("to=safetensors", "output=x", "preprocess=true"), "C380"),
        (("to=onnx", "output=x", "tolerance=-1"), "C101"),
        (("to=onnx", "output=x", "layers=3"), "C102"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(run_dir, tmp_path, words, number):
    done = paceline("export", f"run={run_dir}", *words)
    assert is_one_error_line(done, number), done.err
    assert not list(tmp_path.glob("x*"))


def test_what_is_no_run_cannot_be_exported(tmp_path):
    assert is_one_error_line(paceline("export", "none", "to=onnx", "output=x"), "K120")
