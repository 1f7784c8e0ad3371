"""A small transformer learns to repeat itself: what `gpushare run --memory 4GiB --time 50% -- python train.py` runs.

Needs PyTorch for CUDA (`pip install torch`). On a simulated device kernels compute nothing, so the loss means nothing
there; memory, streams, launches and the time that they take are as the share allows.
"""

import argparse
import time

import torch
from torch import nn

WORDS, WIDTH, LENGTH, BATCH = 1000, 256, 128, 16


def main() -> None:
    """Trains, and prints how fast and with how much memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: run it with `gpushare run`, or check `gpushare doctor`")
    device = torch.cuda.get_device_properties(0)
    print(f"{device.name}: {device.total_memory / 2**30:.1f} GiB", flush=True)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH),
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        nn.Linear(WIDTH, WORDS),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    began = time.monotonic()
    for step in range(1, args.steps + 1):
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            torch.cuda.synchronize()
            rate = step / (time.monotonic() - began)
            held = torch.cuda.max_memory_allocated() / 2**20
            print(f"step {step}: {rate:.1f} steps/s, {held:.0f} MiB of tensors at most", flush=True)


if __name__ == "__main__":
    main()
