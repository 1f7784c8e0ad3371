import json
import threading

import jsonschema
import pytest

from gpushare.inject import cdi, edits
from gpushare.inject.node import DeviceNode, Granted
from gpushare.paths import Layout

GRANT = "g-0123456789ab"
GPU = Granted("GPU-6f1d7a3c-0000-4b5e-9c1a-8d2f00000001", (DeviceNode("/dev/nvidia0", 195, 0),))

# The fields of CDI 0.5.0 that are used here, listed independently: an engine of that version refuses any other field.
STRING, STRINGS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}


def _object(required: list[str], **properties):
    return {"type": "object", "required": required, "additionalProperties": False, "properties": properties}


EDITS = _object(
    [],
    env={"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}},
    mounts={
        "type": "array",
        "items": _object(
            ["hostPath", "containerPath"], hostPath=STRING, containerPath=STRING, options=STRINGS, type=STRING
        ),
    },
    hooks={
        "type": "array",
        "items": _object(
            ["hookName", "path"],
            hookName={"enum": ["createRuntime", "createContainer", "startContainer", "poststart", "poststop"]},
            path={"type": "string", "pattern": "^/"}, args=STRINGS, env=STRINGS, timeout={"type": "integer"},
        ),
    },
    deviceNodes={
        "type": "array",
        "items": _object(
            ["path"], path=STRING, hostPath=STRING, type=STRING, major={"type": "integer"}, minor={"type": "integer"},
            fileMode={"type": "integer"}, permissions={"type": "string", "pattern": "^[rwm]+$"},
            uid={"type": "integer"}, gid={"type": "integer"},
        ),
    },
)  # fmt: skip
SCHEMA = _object(
    ["cdiVersion", "kind", "devices"],
    cdiVersion={"const": "0.5.0"},
    kind={"type": "string", "pattern": "^[a-z][a-z0-9.]+/[a-z][a-z0-9_-]*$"},
    devices={
        "type": "array",
        "minItems": 1,
        "items": _object(
            ["name", "containerEdits"],
            name={"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.:-]*$"},
            containerEdits=EDITS,
        ),
    },
    containerEdits=EDITS,
)


@pytest.mark.parametrize("kind", ["simulated", "real"])
def test_golden(layout, golden, request, kind):
    spec = cdi.spec(edits.container(layout, GRANT, request.getfixturevalue(kind), [GPU]))
    jsonschema.validate(spec, SCHEMA)
    golden(f"cdi-{kind}.json", spec)


@pytest.mark.parametrize("kind", ["simulated", "real"])
def test_golden_of_the_devices_that_stand_for_no_grant(tmp_layout, layout, golden, request, kind):
    node = request.getfixturevalue(kind)
    cdi.write_offers(Layout(layout.run, layout.state, tmp_layout.cdi, layout.socket), node, [GPU])
    spec = json.loads((tmp_layout.cdi / "gpushare.dev-gpu_any.json").read_text())
    jsonschema.validate(spec, SCHEMA)
    any_device, named_device = spec["devices"]
    assert json.loads(json.dumps(any_device).replace('"any"', json.dumps(GPU.id))) == named_device
    golden(f"cdi-any-{kind}.json", any_device)


def test_one_file_per_grant(tmp_layout, simulated):
    first, second = (cdi.write_spec(tmp_layout, name, simulated) for name in ("g-1", "g-2"))
    assert sorted(tmp_layout.cdi.iterdir()) == sorted([first, second])
    assert first.stat().st_mode & 0o777 == 0o644
    names = [json.loads(path.read_text())["devices"][0]["name"] for path in (first, second)]
    assert names == ["g-1", "g-2"]
    cdi.remove_spec(tmp_layout, "g-1")
    cdi.remove_spec(tmp_layout, "g-1")
    assert list(tmp_layout.cdi.iterdir()) == [second]


def test_a_reader_never_sees_half_a_spec(tmp_layout, simulated):
    """Engines watch the directory and read files ending in .json at any time."""
    path = cdi.write_spec(tmp_layout, "g-1", simulated)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            cdi.write_spec(tmp_layout, "g-1", simulated)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            for found in tmp_layout.cdi.glob("*.json"):
                assert json.loads(found.read_text())["kind"] == "gpushare.dev/gpu"
    finally:
        stop.set()
        writer.join()
    assert path.exists()


def test_device_name():
    assert cdi.device_name(GRANT) == f"gpushare.dev/gpu={GRANT}"
