"""The driver for Kubernetes' dynamic resource allocation (DRA, `resource.k8s.io/v1`).

`slices` describes the node's devices in Kubernetes' terms, `claims` determines what a claim asks of the daemon and
which grants belong to claims that are gone: both pure, dicts in and out. `cluster` talks to the API server, `kubelet`
serves the two sockets that kubelet calls, `statuses` writes claims' statuses, `pace` limits writes, `driver` is the
process. All state is the daemon's and the cluster's: a driver that is killed loses nothing.
"""

DRIVER = "gpu.gpushare.dev"
