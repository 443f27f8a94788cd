import hashlib
import json
from dataclasses import replace

import pytest
import yaml

from framework.commands.export.exportable import make_exportable
from framework.commands.export.model_card import (
    USE,
    CardFacts,
    digest_of,
    model_card,
    write_hub_files,
)


@pytest.fixture
def known(run):
    return make_exportable(run, None, 2, True, None)


def card(facts, known, tmp_path, to="onnx"):
    (tmp_path / "model.onnx").write_bytes(b"model")
    return model_card(facts, known, ["largest difference: 0"], to, True, tmp_path / "model.onnx")


def test_a_card_has_digests_metrics_configuration_and_how_to_use_it(run, known, tmp_path):
    facts = CardFacts.of_run(run)
    text = card(facts, known, tmp_path)
    assert facts.data["train"]["digest"] in text
    assert facts.data["val"]["digest"] in text
    assert f"| accuracy | {facts.best['accuracy']:.6g} |" in text
    assert "_target_: framework.model.digits_net.DigitsCNN" in text
    assert "| image | uint8 [batch, 1, 8, 8] |" in text
    assert 'session.run(None, {"image": image})' in text
    assert hashlib.sha256(b"model").hexdigest() in text
    assert digest_of(run.run_dir / "checkpoints" / "best.pt") in text


@pytest.mark.parametrize("to", USE)
def test_every_format_says_how_it_is_used(run, known, tmp_path, to):
    assert "```python" in card(CardFacts.of_run(run), known, tmp_path, to)


def test_no_card_has_a_password_or_breaks_its_page(run, known, tmp_path):
    config = {"uri": "http://me:secret@host/x", "text": "```\n# no heading"}
    facts = replace(
        CardFacts.of_run(run),
        config=config,
        facts={"command": ["train", "uri=http://me:secret@host", "a|b\x1b[2J"]},
    )
    text = card(facts, known, tmp_path)
    assert "secret" not in text
    assert "\x1b" not in text
    assert "````yaml" in text
    assert r"a\|b" in text


def test_a_card_names_the_weights_that_were_chosen(run):
    run.weights = "last"
    digest = digest_of(run.run_dir / "checkpoints" / "last.pt")
    assert CardFacts.of_run(run).weights == f"last (sha256 {digest})"


def test_a_folder_of_the_hub_describes_model_preprocessing_and_results(run, tmp_path):
    known = make_exportable(run, None, 2, False, None)
    facts = CardFacts.of_run(run)
    write_hub_files(run, facts, known, "# card\n", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["architectures"], config["image_size"]) == (["DigitsCNN"], [8, 8])
    assert (config["id2label"]["3"], config["label2id"]["3"]) == ("3", 3)
    assert config["model"]["in_channels"] == 1
    processor = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert processor["image_mean"] == run.config["augment"]["mean"]
    assert (processor["do_normalize"], processor["size"]) == (True, {"height": 8, "width": 8})
    _, head, card = (tmp_path / "README.md").read_text().split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert (metadata["pipeline_tag"], card) == ("image-classification", "\n# card\n")
    (result,) = metadata["model-index"][0]["results"]
    assert {metric["type"]: metric["value"] for metric in result["metrics"]} == facts.best
    assert result["dataset"]["revision"] == facts.data["val"]["digest"]
