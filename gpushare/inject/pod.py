"""What engines call a container: its id, and the pod that it belongs to, read from annotations of Kubernetes'
engines."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

LABEL_MAX = 253
"""Characters; Kubernetes' own names are not longer."""

ID_MAX = 128
"""Characters of a container's id; engines write 64 hex digits, or what their user chose."""

_NAMES = {
    "namespace": ("io.kubernetes.pod.namespace", "io.kubernetes.cri.sandbox-namespace"),
    "pod": ("io.kubernetes.pod.name", "io.kubernetes.cri.sandbox-name"),
    "container": ("io.kubernetes.container.name", "io.kubernetes.cri.container-name"),
    "pod_uid": ("io.kubernetes.pod.uid", "io.kubernetes.cri.sandbox-uid"),
}
"""Annotation names by field: CRI-O's, then containerd's."""


class Pod(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The pod and container that run in a grant, as reported by the engine; empty: not reported. Fields are named as
    the metric labels."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""


def pod_of(annotations: Any) -> Pod:
    """Reads the pod from a container's annotations. Plain engines pass on what their users write, so the values are
    untrusted: any that cannot be a Kubernetes name is left out."""
    if not isinstance(annotations, Mapping):
        return Pod()
    found = {}
    for field, names in _NAMES.items():
        value = next((annotations[name] for name in names if name in annotations), None)
        if isinstance(value, str) and len(value) <= LABEL_MAX and value.isascii() and value.isprintable():
            found[field] = value
    return Pod(**found)


def id_of(given: Any) -> str:
    """The engine's id of a container, from its OCI state; empty where there is none to show."""
    usable = isinstance(given, str) and len(given) <= ID_MAX and given.isascii() and given.isprintable()
    return given if usable else ""
