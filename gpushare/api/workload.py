"""Wire types of what runs in a grant: which program, in which container or pod."""

from msgspec import Struct


class Pod(Struct, frozen=True, kw_only=True):
    """A Kubernetes pod, and which of its containers, as its engine names them."""

    namespace: str
    name: str
    container: str = ""
    uid: str = ""


class Workload(Struct, frozen=True, kw_only=True):
    """`program`: command line of the grant's first process, printable and at most 200 characters, as it was when
    somebody last asked; empty: nothing has run, it has ended since, it cannot be read, or nobody had asked before (ask
    again). `container`: the engine's id of the container, empty: a plain process, or not known. `pod`: set if the
    container is one of a pod. All of it is said by the workload itself or by its engine: a label, and no proof of
    anything."""

    program: str = ""
    container: str = ""
    pod: Pod | None = None
