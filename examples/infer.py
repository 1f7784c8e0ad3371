"""Answers requests as they come and says how long each took: what
`gpushare run --class interactive --memory 4GiB --time 30% -- python infer.py` runs.

A small transformer, ten requests a second. Beside training that takes all that is idle (side_by_side.sh) each request
has to get the device back first, which takes milliseconds. Needs PyTorch for CUDA (`pip install torch`). On a simulated
device kernels compute nothing, so the answers mean nothing there; the times that work takes are the model's.
"""

import argparse
import statistics
import time

import torch
from torch import nn

WORDS, WIDTH, LENGTH, BATCH = 1000, 256, 64, 4
PERIOD = 0.1
"""Seconds from one request to the next, however long an answer takes."""


def answer(model: nn.Module) -> float:
    """Seconds from the request to the answer on the host."""
    began = time.monotonic()
    tokens = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
    model(tokens)[:, -1].argmax(-1).cpu()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: run it with `gpushare run`, or check `gpushare doctor`")
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH),
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        nn.Linear(WIDTH, WORDS),
    ).cuda()
    model.eval()
    took = []
    with torch.inference_mode():
        for _ in range(3):
            answer(model)  # libraries are loaded by the first ones
        due = time.monotonic()
        for number in range(1, args.requests + 1):
            took.append(answer(model))
            if number % 10 == 0 or number == args.requests:
                p50, last = statistics.median(took), max(took)
                print(f"{number} requests: p50 {1000 * p50:.1f} ms, longest {1000 * last:.1f} ms", flush=True)
            due += PERIOD
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
