#!/bin/sh
# A container under containerd with a share, by its own client `ctr`: our runtime in runc's place, asked by annotations.
#
#   sudo examples/containerd.sh IMAGE NAME COMMAND...     # an image that `ctr images ls` has
#
# Pods of a kubelet ask by the handler that `gpushare runtime configure --engine containerd` adds: kubernetes.yaml.
set -eu
exec ctr run --rm --runc-binary "${GPUSHARE_RUNTIME:-gpushare-runtime}" \
  --annotation gpushare.dev/memory=4GiB --annotation gpushare.dev/time=30% "$@"
