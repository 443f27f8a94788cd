import torch
from mine import Net, loader

import paceline

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
objective = paceline.Classify("image", "label", label_smoothing=0.0)
train, val = loader("train"), loader("val")
trainer = paceline.make_trainer(model, objective, optimizer, train=train, val=val, epochs=3)
for means in trainer.epochs():
    print(means)
print(trainer.spans_s)
