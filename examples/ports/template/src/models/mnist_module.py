"""What the LightningModule of the template has: forward, steps, optimizer and scheduler."""

import torch
from torch import nn


class MNISTLitModule(nn.Module):
    def __init__(self, net, optimizer, scheduler):
        super().__init__()
        self.net = net
        self.optimizer, self.scheduler = optimizer, scheduler
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x):
        return self.net(x)

    def model_step(self, batch):
        x, y = batch
        logits = self.forward(x)
        return self.criterion(logits, y), torch.argmax(logits, dim=1), y

    def training_step(self, batch, batch_idx):
        return self.model_step(batch)[0]

    def validation_step(self, batch, batch_idx):
        loss, preds, targets = self.model_step(batch)
        return loss, (preds == targets).sum()

    def configure_optimizers(self):
        optimizer = self.optimizer(params=self.parameters())
        return optimizer, self.scheduler(optimizer=optimizer)
