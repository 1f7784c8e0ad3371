#!/bin/sh
# A batch job with 30 of a device's 100 shards: 30 % of its time guaranteed, and 4 GiB of its memory.
#
#   sbatch examples/slurm.sh python examples/train.py
#
# The node is set up as docs/guides/slurm.md says. Without the comment it has 30 % of the memory too.
#SBATCH --job-name=gpushare
#SBATCH --gres=shard:30
#SBATCH --comment=gpushare:memory=4GiB
set -eu
: "${GPUSHARE_GRANT_DIR:?this job has no share: the node is not set up, or it asked for no shards}"
exec "$@"
