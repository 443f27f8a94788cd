"""Keep what the trained nets of two recipes say, for ``docs/draw.py``.

python docs/predictions.py segment RUN    # the run directory of paceline train recipes=segment
python docs/predictions.py detect RUN
"""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import torch
from paceline_examples.detect_net import DetectNet
from paceline_examples.detect_objective import suggested
from paceline_examples.photo_shapes import detect_scenes, segment_scenes
from paceline_examples.segment_net import SegmentNet
from torch import nn

DATA = Path(__file__).parent / "pictures" / "data"
SCENES = (0, 3, 4, 7)  # of the validation data
SIZE = 80
MOST = 4
LEAST_SCORE = 0.3  # of a box that is drawn


def said(net: nn.Module, run: Path, images: list[np.ndarray]) -> torch.Tensor:
    """Return what the best weights of a run say of images [H, W, 3]."""
    facts = json.loads((run / "run.json").read_text())["auto"]
    net.load_state_dict(torch.load(run / "checkpoints" / "best.pt"))
    net.eval()
    pixels = torch.from_numpy(np.stack(images)) / 255
    normal = (pixels - torch.tensor(facts["augment.mean"])) / torch.tensor(facts["augment.std"])
    with torch.no_grad():
        return net(normal.permute(0, 3, 1, 2))


def segment(run: Path) -> None:
    """Write the label maps, one below the other."""
    images = [next(segment_scenes(item, "val", SIZE, MOST))["image"] for item in SCENES]
    classes = said(SegmentNet(3, 6, 8, 3), run, images).argmax(1).numpy().astype(np.uint8)
    cv2.imwrite(str(DATA / "segment.png"), np.concatenate(classes))


def detect(run: Path) -> None:
    """Write the boxes and classes."""
    images = [next(detect_scenes(item, "val", SIZE, MOST))["image"] for item in SCENES]
    boxes, scores = suggested(said(DetectNet(3, 5, 16), run, images))
    kept: list[list[dict[str, object]]] = []
    for corners, classes, best in zip(boxes.corners, boxes.classes, scores, strict=True):
        count = int((best >= LEAST_SCORE).sum())
        rows = zip(corners[:count].round(decimals=1).tolist(), classes.tolist(), strict=False)
        kept.append([{"box": box, "label": label} for box, label in rows])
    (DATA / "detect.json").write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    {"segment": segment, "detect": detect}[sys.argv[1]](Path(sys.argv[2]))
