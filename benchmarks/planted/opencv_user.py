"""A user's store that lets OpenCV share each call among many threads, as on a large machine."""

import cv2
import numpy as np

from framework.contracts.data import SourceContext
from framework.data.source import StoreSource
from planted.users import PillowStore

SIDE = 128
PASSES = 50


class BlurredStore(PillowStore):
    """A folder of images, blurred by calls that are too small to share among threads."""

    def __init__(self, path: str, size: int, threads: int) -> None:
        super().__init__(path, size)
        cv2.setNumThreads(threads)

    def _image(self, index: int) -> np.ndarray:
        photo = cv2.imread(self.files.name(index))
        assert photo is not None
        image = cv2.resize(photo, (SIDE, SIDE))
        for _ in range(PASSES):
            image = cv2.pyrUp(cv2.pyrDown(image))
        scaled = cv2.resize(image, (self.size, self.size))
        return np.ascontiguousarray(scaled[..., ::-1].transpose(2, 0, 1))


def blurred_source(
    path: str, size: int, threads: int, follow_links: str | None = None, *, context: SourceContext
) -> StoreSource:
    return StoreSource(BlurredStore(path, size, threads), context)
