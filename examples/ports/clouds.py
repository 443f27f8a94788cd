"""What Paceline needs to train somebody's PointNet: a loss of all that the model returns."""

import torch
from pointnet import PointNetLoss


class CloudLoss(PointNetLoss):
    """Their loss, of labels as their files have them: uint8 [B, 1]."""

    def forward(self, output, target: torch.Tensor) -> torch.Tensor:
        pred, trans_feat = output
        return super().forward(pred, target[:, 0].long(), trans_feat)
