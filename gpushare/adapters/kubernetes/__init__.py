"""The driver for Kubernetes' dynamic resource allocation (DRA, `resource.k8s.io/v1`).

`slices` says the node's devices in Kubernetes' words, `claims` what a claim asks of the daemon, and `ledger` which
grants are of claims that are gone: pure, dicts in and out. `cluster` is the API server, `kubelet` the two sockets at
which kubelet asks, `driver` the process that joins them. All state is the daemon's and the cluster's: a driver that is
killed has lost nothing.
"""

DRIVER = "gpu.gpushare.dev"
