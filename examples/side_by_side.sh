#!/bin/sh
# PyTorch training and inference side by side on one device: inference is interactive and has 30 % guaranteed, training
# has 20 % guaranteed and borrows what inference leaves idle. Inference says how long its answers take.
#
#   gpushare daemon --simulate 1x16GiB &     # or a node with a GPU
#   examples/side_by_side.sh                 # in an environment with PyTorch: pip install torch
#
# `gpushare ps`, or `gpushare top`, shows meanwhile who has how much and what is borrowed.
set -eu
here=$(dirname "$0")
python=${PYTHON:-python3}

gpushare run --memory 4GiB --time 20% -- "$python" "$here/train.py" | sed 's/^/train: /' &
trainer=$!
gpushare run --class interactive --memory 4GiB --time 30% -- "$python" "$here/infer.py" "$@" | sed 's/^/infer: /'
wait "$trainer"
