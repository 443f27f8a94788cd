"""Somebody's copy of the Lightning-Hydra template, whose Trainer is written out as a loop."""

import hydra
import torch
from hydra.utils import instantiate


def fit(model, datamodule, max_epochs, gradient_clip_val):
    """Return the loss of every step, and the loss and accuracy of every validation."""
    datamodule.setup("fit")
    optimizer, scheduler = model.configure_optimizers()
    losses, validations = [], []
    for _ in range(max_epochs):
        model.train()
        for batch_idx, batch in enumerate(datamodule.train_dataloader()):
            loss = model.training_step(batch, batch_idx)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clip_val)
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        total, right, count = 0.0, 0, 0
        with torch.no_grad():
            for batch_idx, batch in enumerate(datamodule.val_dataloader()):
                loss, hits = model.validation_step(batch, batch_idx)
                size = len(batch[1])
                total, right, count = total + loss.item() * size, right + hits.item(), count + size
        validations.append((total / count, right / count))
        scheduler.step(total / count)
    return losses, validations


@hydra.main(version_base="1.3", config_path="../configs", config_name="train")
def main(cfg):
    torch.manual_seed(cfg.seed)
    losses, validations = fit(instantiate(cfg.model), instantiate(cfg.data), **cfg.trainer)
    print(losses[-1], validations[-1])


if __name__ == "__main__":
    main()
