import numpy as np
import pytest
from paceline_examples.drawn_lines import FONTS, drawn_lines, picture


def line(item=0, seed=0, max_words=3):
    (record,) = drawn_lines(item, seed, max_words)
    return record


def test_a_row_of_the_image_is_a_column_of_the_picture():
    image = line()["image"]
    assert (image.dtype, image.shape[1], image.flags.c_contiguous) == (np.uint8, 32, True)


def test_the_ink_is_inside_the_picture_in_every_font():
    for seed in range(8 * len(FONTS)):
        gray = picture(np.random.default_rng(seed), "jhgl")
        edges = np.concatenate([gray[0], gray[-1], gray[:, 0], gray[:, -1]]).astype(float)
        assert np.percentile(gray, 99) > 1.2 * np.percentile(edges, 90)


def test_texts_are_words_and_numbers_of_the_alphabet():
    texts = [line(item)["text"] for item in range(50)]
    assert {len(text.split()) for text in texts} == {1, 2, 3}
    assert set("".join(texts)) <= set("abcdefghijklmnopqrstuvwxyz0123456789 ")


@pytest.mark.parametrize("other", [{"item": 1}, {"seed": 1}])
def test_the_same_line_is_the_same_and_others_are_not(other):
    assert np.array_equal(line()["image"], line()["image"])
    assert line()["text"] != line(**other)["text"]
