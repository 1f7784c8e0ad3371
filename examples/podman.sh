#!/bin/sh
# A container under Podman with a share, by the CDI device `any`. The share ends with the container.
#
#   sudo examples/podman.sh IMAGE COMMAND...
#
# The node needs nothing but the daemon and Podman 4.1 or later. Several containers in one share, by a grant of one's own:
#   sudo podman run --device "gpushare.dev/gpu=$(gpushare grant create --memory 4GiB --time 30%)" IMAGE COMMAND...
set -eu
exec podman run --rm --device gpushare.dev/gpu=any \
  --annotation gpushare.dev/memory=4GiB --annotation gpushare.dev/time=30% "$@"
