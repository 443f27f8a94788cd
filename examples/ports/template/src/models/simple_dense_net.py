from torch import nn


class SimpleDenseNet(nn.Module):
    def __init__(self, input_size=784, lin1_size=256, lin2_size=256, output_size=10):
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(input_size, lin1_size),
            nn.BatchNorm1d(lin1_size),
            nn.ReLU(),
            nn.Linear(lin1_size, lin2_size),
            nn.BatchNorm1d(lin2_size),
            nn.ReLU(),
            nn.Linear(lin2_size, output_size),
        )

    def forward(self, x):
        return self.model(x.view(x.shape[0], -1))
