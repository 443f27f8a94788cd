"""Lines of text, drawn with real fonts. Use it with ``input=function``."""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from framework.system.user_code import needed

HEIGHT = 32
FONTS = (  # of matplotlib
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral"),
)
FONT_SIZES = (18, 24)  # pixels
CONSONANTS, VOWELS, DIGITS = "bcdfghjklmnpqrstvwxyz", "aeiou", "0123456789"


def drawn_lines(item: int, seed: int, max_words: int) -> Iterator[dict[str, Any]]:
    """Yield line ``item``: ``image``, uint8 [width, 32], and its ``text``.

    A row of ``image`` is a column of the picture, so that pictures differ in their number of rows.
    Writing is bright on a dark ground. Texts have up to ``max_words`` made-up words and numbers.
    """
    rng = np.random.default_rng([seed, item])
    words = [_word(rng) for _ in range(rng.integers(1, max_words + 1))]
    text = " ".join(words)
    yield {"image": np.ascontiguousarray(picture(rng, text).T), "text": text}


def picture(rng: np.random.Generator, text: str) -> np.ndarray:
    """Draw a text in a random font, size and contrast, with noise: uint8 [32, width]."""
    needed("matplotlib", "report")
    from PIL import Image, ImageDraw  # noqa: PLC0415

    font = _font(str(rng.choice(FONTS)), int(rng.integers(FONT_SIZES[0], FONT_SIZES[1] + 1)))
    left, right = rng.integers(2, 8, 2).tolist()
    image = Image.new("L", (left + round(font.getlength(text)) + right, HEIGHT))
    baseline = HEIGHT - 9 + int(rng.integers(-2, 3))
    ImageDraw.Draw(image).text((left, baseline), text, fill=255, font=font, anchor="ls")
    ground, ink = rng.uniform(10, 90), rng.uniform(140, 245)
    gray = ground + (ink - ground) * np.asarray(image, np.float32) / 255
    gray += rng.uniform(2, 20) * rng.standard_normal(gray.shape, np.float32)
    return np.clip(gray, 0, 255).astype(np.uint8)


def _word(rng: np.random.Generator) -> str:
    """Return a number, or a word of one to three syllables."""
    if rng.uniform() < 0.2:
        return "".join(rng.choice(list(DIGITS), rng.integers(1, 5)))
    word = ""
    for _ in range(rng.integers(1, 4)):
        word += str(rng.choice(list(CONSONANTS))) + str(rng.choice(list(VOWELS)))
        if rng.uniform() < 0.4:
            word += str(rng.choice(list(CONSONANTS)))
    return word


@cache
def _font(name: str, size: int) -> Any:
    from PIL import ImageFont  # noqa: PLC0415

    fonts = Path(import_module("matplotlib").get_data_path(), "fonts", "ttf")
    return ImageFont.truetype(fonts / f"{name}.ttf", size)
