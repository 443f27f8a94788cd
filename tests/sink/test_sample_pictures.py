import cv2
import torch

from framework.sink.sample_pictures import sample_pictures, write_pictures

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
    paths = write_pictures(SAMPLE, 5, tmp_path / "pictures")
    picture = cv2.imread(str(paths[0]))
    assert picture.shape == (2 * 4, 3 * 6, 3)
    corners = picture[::4, ::6, 0].flatten().tolist()
    assert corners == [0, 10, 20, 30, 40, 0]


def test_a_name_of_a_field_leads_nowhere_else(tmp_path):
    paths = write_pictures(SAMPLE, 1, tmp_path)
    assert [path.name for path in paths] == ["sample-image.png", "sample-.._mask.png"]


def test_no_pictures_if_none_are_wanted(tmp_path):
    assert write_pictures(SAMPLE, 0, tmp_path / "pictures") == []
    assert not (tmp_path / "pictures").exists()
