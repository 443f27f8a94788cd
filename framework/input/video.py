"""A folder of video files with a subfolder per class. Other files are passed over."""

from dataclasses import replace
from functools import cached_property
from typing import final

import numpy as np

from framework.contracts.records import Field, Manifest
from framework.input.file_items import read_file
from framework.input.folder import FolderInput
from framework.input.rows import Row
from framework.media.video_file import SUFFIXES


@final
class VideoInput(FolderInput):
    """Fields ``video`` (a file's bytes) and ``label``, ordered by class and name.

    Packing decodes the files. ``conf/input/video.yaml`` describes the options.
    """

    suffixes = SUFFIXES
    noun = "video"

    @cached_property
    def manifest(self) -> Manifest:
        video = Field("uint8", (None, None, None, 3), "frames")
        fields = {"video": video}
        if self.labeled is not False:
            fields["label"] = Field("int64", ())
        return replace(self.manifest_without_fields(), fields=fields)

    def row(self, index: int) -> Row:
        row: Row = {"video": read_file(self.name(index))}
        if self.labeled is not False:
            row["label"] = np.array(self.items.labels[index])
        return row
