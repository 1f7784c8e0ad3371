#!/bin/sh
# PyTorch training and inference side by side on one device: inference is interactive and has 30 % guaranteed, training
# has 20 % guaranteed and borrows what inference leaves idle. Inference says how long its answers take.
#
#   gpushare daemon --simulate 1x16GiB &     # or a node with a GPU
#   examples/side_by_side.sh                 # in an environment with PyTorch: pip install torch
#
# Training goes on until inference has had its answers. `gpushare ps`, or `gpushare top`, shows meanwhile who has how much,
# and what of it is borrowed.
set -eu
here=$(dirname "$0")
python=${PYTHON:-python3}
log=$(mktemp)

gpushare run --memory 4GiB --time 20% -- "$python" "$here/train.py" --steps 1000000 >"$log" &
trainer=$!
trap 'kill "$trainer" 2>/dev/null; rm -f "$log"' EXIT
until grep -q steps/s "$log"; do
  kill -0 "$trainer" # ended without a step: so does this, by -e
  sleep 0.2
done
gpushare run --class interactive --memory 4GiB --time 30% -- "$python" "$here/infer.py" "$@" | sed 's/^/infer: /'
tail -n 1 "$log" | sed 's/^/train: /'
