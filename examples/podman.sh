#!/bin/sh
# A container under Podman with a share, by CDI: a grant is made and named as a device. It ends with the container.
#
#   sudo examples/podman.sh IMAGE COMMAND...
#
# The node needs nothing but the daemon and Podman 4.1 or later. By annotations instead, without a grant of one's own:
#   sudo gpushare runtime configure --engine podman
#   sudo podman run --annotation gpushare.dev/memory=4GiB --annotation gpushare.dev/time=30% IMAGE COMMAND...
set -eu
grant=$(gpushare grant create --memory 4GiB --time 30%)
exec podman run --rm --device "gpushare.dev/gpu=$grant" "$@"
