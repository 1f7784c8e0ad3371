"""The device plugin for Kubernetes clusters without dynamic resource allocation (v1beta1).

A separate process and a client of the node API. Each device is offered as a number of slots; a container's slots, all
of one device, are one grant, which is kept until its pod is gone. `slots` has the decisions, without I/O; `kubelet` the
sockets and messages; `plugin` is the process.
"""

RESOURCE = "gpushare.dev/slot"
