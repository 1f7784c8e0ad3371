"""Messages of Nomad's plugin API 0.1.0 and of go-plugin's own services, as tables of their fields."""

from gpushare.adapters.messages import Table, data, flag, keyed, message, text, whole

BASE = "hashicorp.nomad.plugins.base.proto.BasePlugin"
DEVICE = "hashicorp.nomad.plugins.device.DevicePlugin"
HEALTH = "grpc.health.v1.Health"
BROKER, CONTROLLER, STDIO = "plugin.GRPCBroker", "plugin.GRPCController", "plugin.GRPCStdio"

COOKIE = ("NOMAD_PLUGIN_MAGIC_COOKIE", "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255")
"""Environment variable and value by which a plugin recognises that Nomad has started it."""
CORE_VERSION, VERSIONS = 1, (2, 1)
"""Versions of go-plugin's handshake, and of Nomad's plugin protocol, newest first; all have the same messages."""

IS_DEVICE_PLUGIN = 3
API_VERSIONS = ["v0.1.0"]
SERVING = 1

HEALTH_CHECK, HEALTH_STATUS = Table(service=text(1)), Table(status=whole(1))
CONNECTION = Table(service=whole(1), network=text(2), address=text(3))
OUTPUT = Table(channel=whole(1), data=data(2))

INFO = Table(type=whole(1), api_versions=text(2, many=True), version=text(3), name=text(4))

_ATTRIBUTE = Table(name=text(1), type=text(2), required=flag(3))
_SPEC = Table(attribute=message(3, _ATTRIBUTE))
_OBJECT = Table(attributes=keyed(1, _SPEC))
SCHEMA = Table(spec=message(1, Table(object=message(1, _OBJECT))))
CONFIG = Table(msgpack=data(1), api_version=text(3))

_VALUE = Table(int=whole(2), string=text(3), unit=text(5))
_LOCALITY = Table(pci_bus_id=text(1))
_DETECTED = Table(id=text(1), healthy=flag(2), reason=text(3), locality=message(4, _LOCALITY))
_GROUP = Table(
    vendor=text(1), type=text(2), name=text(3), devices=message(4, _DETECTED, many=True), attributes=keyed(5, _VALUE)
)
FINGERPRINT = Table(groups=message(1, _GROUP, many=True))

RESERVE = Table(ids=text(1, many=True))
_MOUNT = Table(task=text(1), host=text(2), read_only=flag(3))
_NODE = Table(task=text(1), host=text(2), permissions=text(3))
_CONTAINER = Table(env=keyed(1), mounts=message(2, _MOUNT, many=True), devices=message(3, _NODE, many=True))
RESERVED = Table(container=message(1, _CONTAINER))

_TIME = Table(seconds=whole(1), nanos=whole(2))
INTERVAL = Table(interval=message(1, _TIME))
_NUMBER = Table(numerator=whole(3), denominator=whole(4), string=text(5), unit=text(7), description=text(8))
_STATS = Table(
    summary=message(1, _NUMBER), stats=message(2, Table(attributes=keyed(2, _NUMBER))), timestamp=message(3, _TIME)
)
STATS = Table(
    groups=message(1, Table(vendor=text(1), type=text(2), name=text(3), instances=keyed(4, _STATS)), many=True)
)
