"""What an evaluation prints."""

import json
from pathlib import Path

from framework.commands.evaluate.print_evaluation import print_evaluation


def test_of_many_classes_those_with_the_lowest_f1_are_shown(capsys):
    rows = [
        {"name": f"c{n}", "count": 1, "precision": 1.0, "recall": None, "f1": n / 50, "iou": 0.5}
        for n in range(50)
    ]
    evaluated_set = {
        "data": "v.h5",
        "records": 50,
        "wall_s": 1.0,
        "records_per_s": 50.0,
        "spans": {},
    }
    evaluated_set |= {"means": {"loss": 1.5}, "classes": rows}
    summary = {"sets": {"val": evaluated_set}, "files": [], "weights_file": "w.pt"}
    Path("evaluation.json").write_text(json.dumps(summary))
    print_evaluation(Path())
    text = capsys.readouterr().out
    assert "the 20 of 50 classes with the lowest f1" in text
    assert "c0 " in text
    assert "c20 " not in text
    assert "val loss 1.5000" in text
