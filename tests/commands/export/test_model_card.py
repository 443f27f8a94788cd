import hashlib
from dataclasses import replace

import pytest

from framework.commands.export.exportable import make_exportable
from framework.commands.export.model_card import USE, CardFacts, digest_of, model_card


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
    assert "_target_: paceline_examples.digits_net.DigitsCNN" in text
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
