import json

import yaml

from framework.commands.export.exportable import make_exportable
from framework.commands.export.hub_folder import write_hub_files
from framework.commands.export.model_card import CardFacts


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
    assert {metric["type"]: metric["value"] for metric in result["metrics"]} == dict(
        item for item in facts.best.items() if item[0] != "step"
    )
    assert result["dataset"]["revision"] == facts.data["val"]["digest"]
