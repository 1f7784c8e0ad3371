"""What a type checker, and so an editor, knows of the installed client: of all that it takes and returns."""

import sys
from subprocess import run

from run.built import ROOT
from views.pagecode import blocks

# `assert_type` fails on another type, Any included; an unused `ignore` is an error, so each of these lines has one.
SNIPPET = """
from typing import Literal, assert_type

from gpushare.aio import AsyncClient
from gpushare.client import Client, types

node = Client()
assert_type(node.grants()[0], types.Grant)
assert_type(node.grants()[0]["devices"][0]["memory_limit_bytes"], int)
assert_type(node.grants()[0]["class"], Literal["interactive", "inference", "training"])
assert_type(node.create(memory="4GiB", time="30%", class_="inference", gang={"id": "a"}), types.Grant)
node.create(memory="4GiB", time="30%", clas="inference")  # type: ignore[call-arg]
node.create(memory="4GiB", time="30%", class_="batch")  # type: ignore[arg-type]
node.create(time="30%")  # type: ignore[call-arg]
node.usage(by="tenants")  # type: ignore[arg-type]
node.grant("g-1")["tennant"]  # type: ignore[typeddict-item]
node.set_tenant("labs", {"time": "60%", "wieght": 2})  # type: ignore[typeddict-unknown-key]
for event in node.follow():
    if event["type"] == "listed":
        assert_type(event["object"], list[types.Grant])
    elif event["kind"] == "device":
        assert_type(event["object"]["health"], Literal["healthy", "unhealthy"])


async def main() -> None:
    async with AsyncClient() as other:
        assert_type(await other.plan(memory=1, time=300), types.Plan)
        assert_type((await other.devices())[0]["name"], str)
        await other.release(7)  # type: ignore[arg-type]
        async for event in other.follow():
            assert_type(event, types.FollowEvent)
"""


def test_a_users_program_is_checked_to_the_last_field(tmp_path):
    """With mypy --strict: a snippet, those of the node API's page, and the example of a scheduler."""
    programs = [ROOT / "examples" / "scheduler.py"]
    found = [block.text for block in blocks(ROOT / "docs" / "reference" / "node-api.md") if block.kind == "python"]
    assert len(found) > 1
    for number, text in enumerate([SNIPPET, *found]):
        programs.append(tmp_path / f"program_{number}.py")
        programs[-1].write_text(text)
    # In another directory: the installed client is meant, not the source tree.
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", *programs]
    checked = run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
