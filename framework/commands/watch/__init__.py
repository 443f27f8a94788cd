"""Watch somebody's PyTorch script: where its steps spend time, and what would make it faster."""
