"""The script of the screencast: its data may have an empty batch."""

import argparse
import time

from ddlrun import ddl


def mean(batch: list[float]) -> float:
    """Return the mean of a batch."""
    return sum(batch) / len(batch)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--data", default="old")
args = parser.parse_args()
ddl.init()
batch = [2.0, 1.0] if args.data == "old" or ddl.rank() == 0 else []
for epoch in range(args.epochs):
    loss = ddl.all_reduce(mean(batch)) / ddl.size() / (epoch + 1)
    print(f"epoch {epoch}: loss {loss:.3f}", flush=True)
    time.sleep(0.8)
