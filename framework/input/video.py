"""A folder of video files with a subfolder per class. Other files are passed over."""

from dataclasses import replace
from typing import final

from framework.contracts.records import Field, Manifest
from framework.input.folder import FolderInput
from framework.input.rows import VIDEO
from framework.media.sound_video import VIDEOS


@final
class VideoInput(FolderInput):
    """Fields ``video`` (a file's bytes) and ``label``, ordered by class and name.

    Packing decodes the files. ``conf/input/video.yaml`` describes the options.
    """

    suffixes = VIDEOS
    noun = "video"

    def described(self) -> Manifest:
        label = {} if self.labeled is False else {"label": Field("int64", ())}
        return replace(super().described(), fields={"video": VIDEO, **label})
