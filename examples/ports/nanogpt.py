"""Somebody's small GPT on a file of tokens, after nanoGPT, with its loop, in plain PyTorch."""

import math
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class LayerNorm(nn.Module):
    """Layer norm without a bias."""

    def __init__(self, ndim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight)


class Block(nn.Module):
    def __init__(self, n_embd: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.ln_1, self.ln_2 = LayerNorm(n_embd), LayerNorm(n_embd)
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        wide = 4 * n_embd
        self.mlp = nn.Sequential(nn.Linear(n_embd, wide), nn.GELU(), nn.Linear(wide, n_embd))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        heads = self.c_attn(self.ln_1(x)).view(b, t, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab_size=65, block_size=32, n_layer=2, n_head=4, n_embd=64):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.Sequential(*[Block(n_embd, n_head) for _ in range(n_layer)])
        self.ln_f = LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight  # weight tying
        for weight in (self.wte.weight, self.wpe.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        x = self.ln_f(self.h(x))
        if targets is None:  # to write on, only the last token counts
            return self.lm_head(x[:, [-1]]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    def configure_optimizers(self, weight_decay: float, lr: float):
        groups = [
            {"params": [p for p in self.parameters() if p.dim() >= 2]},
            {"params": [p for p in self.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr, betas=(0.9, 0.95), weight_decay=weight_decay)


def get_batch(data: np.ndarray, rng: torch.Generator, block_size: int = 32, batch_size: int = 8):
    ix = torch.randint(len(data) - block_size, (batch_size,), generator=rng)
    blocks = [data[i : i + block_size + 1].astype(np.int64) for i in ix]
    blocks = torch.from_numpy(np.stack(blocks))
    return blocks[:, :-1], blocks[:, 1:].contiguous()


def get_lr(it: int, lr: float = 0.01, min_lr: float = 0.001, warmup: int = 10, decay: int = 40):
    if it < warmup:
        return lr * (it + 1) / (warmup + 1)
    ratio = min(1.0, (it - warmup) / (decay - warmup))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (lr - min_lr)


@torch.no_grad()
def estimate_loss(model: GPT, data: np.ndarray, eval_iters: int = 5):
    model.eval()
    rng = torch.Generator().manual_seed(1337)
    losses = [model(*get_batch(data, rng))[1].item() for _ in range(eval_iters)]
    model.train()
    return sum(losses) / eval_iters


def train(weights: str, max_iters: int = 40, eval_interval: int = 20):
    """Train from weights, and return the loss of every step and every estimate."""
    train_data, val_data = (np.memmap(name, np.uint16, "r") for name in ("train.bin", "val.bin"))
    model = GPT()
    model.load_state_dict(torch.load(weights))
    optimizer = model.configure_optimizers(weight_decay=0.1, lr=0.01)
    rng = torch.Generator().manual_seed(1337)
    losses, estimates = [], []
    for it in range(max_iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it)
        micro_losses = []
        for _ in range(2):  # gradient accumulation
            _, loss = model(*get_batch(train_data, rng))
            (loss / 2).backward()
            micro_losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(sum(micro_losses) / 2)
        if (it + 1) % eval_interval == 0:
            estimates.append(estimate_loss(model, val_data))
    return losses, estimates


if __name__ == "__main__":
    print(train(sys.argv[1]))
