"""Keep what the trained nets of recipes say, and which batches buckets make, for ``docs/draw.py``.

python docs/predictions.py segment RUN    # the run directory of the recipe segment
python docs/predictions.py detect RUN
python docs/predictions.py recognize RUN
python docs/predictions.py hear outputs/data/hear/train.h5
"""

import base64
import json
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch
from paceline_examples.detect_net import DetectNet
from paceline_examples.detect_objective import suggested
from paceline_examples.drawn_lines import drawn_lines
from paceline_examples.lines_net import LinesNet
from paceline_examples.photo_shapes import detect_scenes, segment_scenes
from paceline_examples.segment_net import SegmentNet
from torch import nn

from framework.augment.spectrogram import Spectrogram
from framework.media.sound_video import read_sound, sound_header
from framework.objective.recognize import Recognize
from framework.order.batches import Order
from framework.order.buckets import cut
from framework.store.hdf5_store import HDF5Store

DATA = Path(__file__).parent / "pictures" / "data"
SCENES = (0, 3, 4, 7)  # of the validation data
SIZE = 80
MOST = 4
LEAST_SCORE = 0.3  # of a box that is drawn
LINES = (1, 42, 4, 13, 9, 36, 24)  # of the validation data
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 "
SOUNDS = {"rise": 556, "warble": 751, "hill": 1088, "trill": 387}  # milliseconds
BATCH_SIZE, NUM_BATCHES = 32, 3


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
        pixels = [[round(side, 1) for side in box] for box in corners[:count].tolist()]
        rows = zip(pixels, classes.tolist(), strict=False)
        kept.append([{"box": box, "label": label} for box, label in rows])
    (DATA / "detect.json").write_text(json.dumps(kept) + "\n")


def recognize(run: Path) -> None:
    """Write the text of each line."""
    net = LinesNet(len(ALPHABET) + 1, 12)
    net.load_state_dict(torch.load(run / "checkpoints" / "best.pt"))
    net.eval()
    objective = Recognize("image", "text", ALPHABET)
    texts: dict[int, str] = {}
    for item in LINES:
        image = torch.from_numpy(next(drawn_lines(item, seed=1, max_words=4))["image"])
        with torch.no_grad():
            texts[item] = objective.read(*net(image[None], torch.tensor([len(image)])))[0]
    (DATA / "recognize.json").write_text(json.dumps(texts, indent=1) + "\n")


def hear(store: Path) -> None:
    """Write spectrograms, and the lengths of sounds in batches with and without buckets."""
    with_sounds = HDF5Store(str(store))
    count = with_sounds.manifest.num_records
    records = with_sounds.read(torch.arange(count))
    files = records["audio"].arrays()
    with_sounds.close()
    lengths = torch.tensor([sound_header(data).num_frames for data in files])
    milliseconds = lengths // (sound_header(files[0]).rate // 1000)
    pictures: list[dict[str, object]] = []
    for kind, duration in SOUNDS.items():
        label = with_sounds.manifest.classes.index(kind)
        same = torch.where(records["label"] == label, (milliseconds - duration).abs(), 1 << 30)
        number = int(same.argmin())
        picture = {"kind": kind, "ms": int(milliseconds[number])}
        pictures.append({**picture, "png": spectrogram_of(files[number])})
    plain = Order(count, BATCH_SIZE, shuffle=True)
    cuts = cut(lengths, BATCH_SIZE, None, 0.08, plain.last)
    kept: dict[str, object] = {"sounds": pictures}
    for name, order in {"full": plain, "buckets": replace(plain, cuts=cuts)}.items():
        batches = [milliseconds[share.indices] for share in order.shares(0, 0)]
        whole = sum(int(batch.max()) * len(batch) for batch in batches)
        first = [sorted(batch.tolist(), reverse=True) for batch in batches[:NUM_BATCHES]]
        kept[name] = {"padding": 1 - int(milliseconds.sum()) / whole, "batches_ms": first}
    (DATA / "hear.json").write_text(json.dumps(kept) + "\n")


def spectrogram_of(data: np.ndarray) -> str:
    """Return a gray PNG of a sound's loudest bands, in base64."""
    sounds = torch.from_numpy(read_sound(data))[None]
    mels = Spectrogram("audio", 8000, window=256, hop=64, bands=40)({"audio": sounds}, None)
    picture = mels["audio"][0].flip(0)
    dark = picture.quantile(0.3)
    shades = (255 * (picture - dark) / (picture.max() - dark)).clamp(0, 255).byte()
    return base64.b64encode(cv2.imencode(".png", shades.numpy())[1].tobytes()).decode()


if __name__ == "__main__":
    works = {"segment": segment, "detect": detect, "recognize": recognize, "hear": hear}
    works[sys.argv[1]](Path(sys.argv[2]))
