#!/bin/sh
# A container under Docker with a share, by annotations of the runtime `gpushare`.
#
#   sudo gpushare runtime configure --engine docker --restart     # once
#   sudo examples/docker.sh IMAGE COMMAND...
#
# Docker 24 or later: older ones pass no annotations on to the runtime. From 25 on a grant can be named as a device:
#   docker run --device "gpushare.dev/gpu=$(gpushare grant create --memory 4GiB --time 30%)" IMAGE COMMAND...
set -eu
exec docker run --rm --runtime gpushare \
  --annotation gpushare.dev/memory=4GiB --annotation gpushare.dev/time=30% "$@"
