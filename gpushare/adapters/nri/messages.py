"""Messages of NRI's plugin API and of ttrpc, as tables of the fields that the plugin uses."""

from gpushare.adapters.messages import Table, data, flag, keyed, message, text, whole

RUNTIME = "nri.pkg.api.v1alpha1.Runtime"
CREATE_EVENT, REMOVE_EVENT = 4, 11
"""Of the enum Event."""

_STATUS = Table(code=whole(1), message=text(2))
CALL = Table(service=text(1), method=text(2), payload=data(3))
ANSWER = Table(status=message(1, _STATUS), payload=data(2))

_WRAPPED = Table(value=whole(1))
_MOUNT = Table(destination=text(1), type=text(2), source=text(3), options=text(4, many=True))
_NODE = Table(
    path=text(1),
    type=text(2),
    major=whole(3),
    minor=whole(4),
    fileMode=message(5, _WRAPPED),
    uid=message(6, _WRAPPED),
    gid=message(7, _WRAPPED),
)
POD = Table(annotations=keyed(6))
NAMED = Table(id=text(1), name=text(3), annotations=keyed(6))
"""What is read of each container; the rest, CONTAINER, only of those that ask for a share."""
CONTAINER = Table(
    id=text(1),
    name=text(3),
    annotations=keyed(6),
    env=text(8, many=True),
    mounts=message(9, _MOUNT, many=True),
    linux=message(11, Table(devices=message(2, _NODE, many=True))),
)

_HOOK = Table(path=text(1), args=text(2, many=True), timeout=message(4, _WRAPPED))
_HOOKS = Table(
    prestart=message(1, _HOOK, many=True),
    createRuntime=message(2, _HOOK, many=True),
    createContainer=message(3, _HOOK, many=True),
    startContainer=message(4, _HOOK, many=True),
    poststart=message(5, _HOOK, many=True),
    poststop=message(6, _HOOK, many=True),
)
_RULE = Table(allow=flag(1), type=text(2), major=message(3, _WRAPPED), minor=message(4, _WRAPPED), access=text(5))
_LINUX = Table(devices=message(1, _NODE, many=True), resources=message(2, Table(devices=message(7, _RULE, many=True))))
_ADJUSTMENT = Table(
    annotations=keyed(2),
    mounts=message(3, _MOUNT, many=True),
    env=message(4, Table(key=text(1), value=text(2)), many=True),
    hooks=message(5, _HOOKS),
    linux=message(6, _LINUX),
)

REGISTER = Table(name=text(1), index=text(2))
CONFIGURE, CONFIGURED = Table(engine=text(2), version=text(3), timeout_ms=whole(5)), Table(events=whole(2))
SYNCHRONIZE = Table(containers=message(2, Table(id=text(1)), many=True), more=flag(3))
SYNCHRONIZED = Table(more=flag(2))
CREATE, CREATED = Table(pod=data(1), container=data(2)), Table(adjust=message(1, _ADJUSTMENT))
REMOVE = Table(container=data(2))
CHANGE = Table(event=whole(1), container=data(3))
