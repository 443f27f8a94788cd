"""The transform of `opencv_user` after the advice."""

import cv2

from planted.opencv_user import blur

cv2.setNumThreads(0)

__all__ = ["blur"]
