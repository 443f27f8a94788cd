"""Mixed precision with a GradScaler and clipped gradients."""

import sys

import torch
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.float16 if device == "cuda" else torch.bfloat16


class Waves(Dataset):
    def __init__(self, n=160, length=256):
        self.n = n
        self.length = length

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        t = torch.linspace(0, 6.28, self.length)
        wave = sum(torch.sin((index % 7 + k) * t) / k for k in range(1, 40))
        return {"wave": wave, "label": index % 7}


def train():
    torch.manual_seed(1)
    loader = DataLoader(Waves(), batch_size=16, shuffle=True, drop_last=True)
    net = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 7)).to(device)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 4 * len(loader))
    scaler = GradScaler(device, init_scale=256.0)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 4):
        for batch in loader:
            opt.zero_grad(set_to_none=True)
            with autocast(device, dtype=dtype):
                loss = criterion(net(batch["wave"].to(device)), batch["label"].to(device))
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            sched.step()
        print("epoch", epoch, "loss", repr(loss.item()))


train()
