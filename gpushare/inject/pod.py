"""Whose container it is, in the words of the engines that Kubernetes uses."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

LABEL_MAX = 253
"""Characters: of Kubernetes' own names none is longer."""

_NAMES = {
    "namespace": ("io.kubernetes.pod.namespace", "io.kubernetes.cri.sandbox-namespace"),
    "pod": ("io.kubernetes.pod.name", "io.kubernetes.cri.sandbox-name"),
    "container": ("io.kubernetes.container.name", "io.kubernetes.cri.container-name"),
    "pod_uid": ("io.kubernetes.pod.uid", "io.kubernetes.cri.sandbox-uid"),
}
"""CRI-O's, and containerd's."""


class Pod(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whose container runs in a grant, as its engine says; empty: it does not say. The names are the labels'."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""


def pod_of(annotations: Any) -> Pod:
    """What a container's annotations say. A plain engine passes on what its user writes there, so that anything may be
    in them: what is no name of Kubernetes' is left out."""
    if not isinstance(annotations, Mapping):
        return Pod()
    found = {}
    for field, names in _NAMES.items():
        value = next((annotations[name] for name in names if name in annotations), None)
        if isinstance(value, str) and len(value) <= LABEL_MAX and value.isascii() and value.isprintable():
            found[field] = value
    return Pod(**found)
