import os
from dataclasses import replace

import pytest
import torch

from framework.commands.export.export import ExportOptions
from framework.commands.export.export_model import export_model
from framework.errors import ConfigError, ResourceError
from framework.train.weight_files import read_weights

OPTIONS = ExportOptions("run", "torch_export", "out", num_records=4, repeats=2)


def choice(path, **changes):
    return replace(OPTIONS, output=str(path), **changes)


def test_a_folder_gets_the_model_and_its_card(run, tmp_path, capsys):
    export_model(run, choice(tmp_path / "new" / "out"))
    assert sorted(os.listdir(tmp_path / "new")) == ["out"]
    assert sorted(os.listdir(tmp_path / "new" / "out")) == ["MODEL_CARD.md", "model.pt2"]
    said = capsys.readouterr().out
    assert "in: image float32 [batch, 1, 8, 8]\nout: output float32 [batch, 10]\n" in said
    assert "largest difference: " in said


def test_a_single_record_leaves_the_batch_size_free(run, tmp_path):
    export_model(run, choice(tmp_path / "digits.pt2", num_records=1))
    module = torch.export.load(tmp_path / "digits.pt2").module()
    assert module(torch.zeros(5, 1, 8, 8))[0].shape == (5, 10)


def test_a_folder_of_the_hub_can_start_another_training(run, tmp_path):
    export_model(run, choice(tmp_path / "hub", to="huggingface"))
    names = ["README.md", "config.json", "model.safetensors", "preprocessor_config.json"]
    assert sorted(os.listdir(tmp_path / "hub")) == names
    weights = read_weights(tmp_path / "hub")
    assert all(torch.equal(weights[name], own) for name, own in run.model.state_dict().items())


def test_an_export_that_differs_leaves_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setattr("framework.commands.export.export_model.difference", lambda *_: 1.0)
    with pytest.raises(ConfigError, match="C384"):
        export_model(run, choice(tmp_path / "out"))
    assert os.listdir(tmp_path) == []


def test_a_disk_that_refuses_leaves_nothing(run, tmp_path, monkeypatch):
    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("framework.commands.export.export_model.sync", full)
    with pytest.raises(ResourceError, match=r"R101.*No space left"):
        export_model(run, choice(tmp_path / "out"))
    assert os.listdir(tmp_path) == []
