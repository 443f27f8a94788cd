import torch
from mine import Net, loader
from torch.nn.functional import cross_entropy

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
train, val = loader("train"), loader("val")
for _ in range(3):
    model.train()
    for batch in train:
        loss = cross_entropy(model(batch["image"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    total, right, count = 0.0, 0, 0
    with torch.no_grad():
        for batch in val:
            logits, labels = model(batch["image"]), batch["label"]
            total += cross_entropy(logits, labels).item() * len(labels)
            right += (logits.argmax(1) == labels).sum().item()
            count += len(labels)
    print({"loss": total / count, "accuracy": right / count})
