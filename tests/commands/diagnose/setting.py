"""Settings as a command line would make them, over small stores."""

import cv2
import numpy as np

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.diagnose.diagnose import changed
from framework.commands.diagnose.measure_parts import Setting

NOBODY = Grant(frozenset(), "")


def setting(*words: str) -> Setting:
    return Setting(*composed(["data.val=null", *words], NOBODY))


def compose_of(*words: str):
    return lambda changes: setting(*changed(words, changes))


def write_photos(folder, count=24, height=120, width=160) -> str:
    """Write images in two classes, and return the path of their folder."""
    rng = np.random.default_rng(0)
    for number in range(count):
        place = folder / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (6, 8, 3), np.uint8)
        image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        (place / f"{number}.jpg").write_bytes(cv2.imencode(".jpg", image)[1].tobytes())
    return str(folder)
