"""The device plugin for Kubernetes clusters without dynamic resource allocation (v1beta1).

A client of the node API and a process of its own. Each device is so many slots; a container's slots, all of one device,
are one grant, which is kept until its pod is gone. `slots` decides, without I/O; `kubelet` has the sockets and the
messages; `plugin` is the process.
"""

RESOURCE = "gpushare.dev/slot"
