from dataclasses import replace

import cv2
import torch

from framework.contracts.span import RankReport, RankSpan
from framework.contracts.training import Report
from framework.sink.base import learned_values, measured_values, sample_pictures, write_picture
from tests.fakes import span


def report(split="train", **more):
    spans = {"wait": span(0.5, 0.25)}
    return Report(split, 1, 1, {"loss": 1.0}, 9.0, spans, 0.1, skipped=2, **more)


def test_what_is_learned_are_means_and_rate_of_the_split():
    assert learned_values(report()) == {"loss/train": 1.0, "lr/train": 0.1}
    assert learned_values(report("val.clean")) == {"loss/val.clean": 1.0}


def test_what_is_measured_belongs_to_training():
    more = {"stages_s": {"read": 0.5}, "ready": 1.5, "usage": {"cpu_cores": 2.0}}
    values = measured_values(report(**more, epoch_left=64, left_s=9.5))
    assert values["span/wait_s"] == report().spans["wait"].mean_s
    del values["span/wait_s"], values["span_p50/wait_s"], values["span_p90/wait_s"]
    assert values == {
        "records_per_s/train": 9.0,
        "stage/read_s": 0.5,
        "stage/ready": 1.5,
        "usage/cpu_cores": 2.0,
        "usage/skipped_steps": 2,
        "time_left/epoch_records": 64,
        "time_left/run_s": 9.5,
    }
    assert all(tag > "loss" for tag in values)  # TensorBoard unfolds only the first two groups
    assert measured_values(report("val")) == {"records_per_s/val": 9.0}


def test_the_quickest_and_the_slowest_rank_have_curves():
    ranks = RankReport(4, {"wait": RankSpan(0.1, 0.2, 0.3, 2)})
    values = measured_values(replace(report(), ranks=ranks))
    assert values["span_ranks/wait_min_s"] == 0.1
    assert values["span_ranks/wait_max_s"] == 0.3


SAMPLE = {
    "index": torch.arange(5),
    "image": torch.arange(5, dtype=torch.uint8).reshape(5, 1, 1, 1).expand(5, 3, 4, 6) * 10,
    "../mask": torch.zeros(5, 1, 4, 6, dtype=torch.uint8),
    "many": torch.zeros(5, 5, 4, 6, dtype=torch.uint8),
    "float": torch.zeros(5, 3, 4, 6),
}


def test_only_fields_of_images_are_pictures():
    pictures = sample_pictures(SAMPLE, 2)
    assert {name: len(images) for name, images in pictures.items()} == {"image": 2, "../mask": 2}


def test_a_picture_shows_the_records_row_by_row(tmp_path):
    write_picture(tmp_path / "image.png", SAMPLE["image"])
    picture = cv2.imread(str(tmp_path / "image.png"))
    assert picture.shape == (2 * 4, 3 * 6, 3)
    corners = picture[::4, ::6, 0].flatten().tolist()
    assert corners == [0, 10, 20, 30, 40, 0]
