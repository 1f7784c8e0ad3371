"""`gpushare runtime` on files: what is written, with which owner and mode, and what is left alone."""

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from gpushare.cli.main import main

GOLDEN = Path(__file__).parent / "golden"
WRAPPER = "/usr/bin/gpushare-runtime"
VERSIONS = {
    "containerd-1.6": "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3",
    "containerd-1.7": "containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6+deb13u1",
    "containerd-2.1": "containerd github.com/containerd/containerd/v2 2.1.9+unknown ",
    "containerd-2.4": "containerd github.com/containerd/containerd/v2 2.4.0-beta+unknown ",
    "docker-20.10": "Docker version 20.10.24+dfsg1, build 297e128",
    "docker-26.1": "Docker version 26.1.5+dfsg1, build 411e817",
    "docker-28.5": "Docker version 28.5.2+dfsg4, build 3ef3c07c883be49a2e8097bcf6d2952fce1d70eb",
    "podman-4.3": "podman version 4.3.1",
    "crio-1.37": "crio version 1.37.0\nGitCommit: x\nGoVersion: go1.27",
}


class Machine:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "config"

    def program(self, version: str) -> Path:
        path = self.directory / "bin" / version
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ncat <<'E'\n{VERSIONS[version]}\nE\n")
        path.chmod(0o755)
        return path

    def __call__(self, verb: str, version: str, *options: str) -> int:
        given = ["runtime", verb, "--engine", version.partition("-")[0], "--config", str(self.config)]
        given += ["--executable-path", str(self.program(version)), "--hooks-dir", str(self.directory / "hooks")]
        if verb == "configure" and "--runtime-path" not in options:
            given += ["--runtime-path", WRAPPER]
        return main([*given, *options])

    def tree(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.directory)): path.read_bytes()
            for path in sorted(self.directory.rglob("*"))
            if path.is_file() and "bin" not in path.parts
        }


@pytest.fixture
def machine(tmp_path) -> Machine:
    tmp_path.chmod(0o755)
    return Machine(tmp_path)


CASES = sorted(f"{path.parent.name}-{path.name.removesuffix('.after')}" for path in GOLDEN.glob("*/*.after"))


@pytest.mark.parametrize("case", CASES)
def test_golden(machine, case, capsys):
    """Cases are ENGINE-VERSION,FILE: `before` (if absent: no file) is configured twice, then unconfigured."""
    version, _, kind = case.partition(",")
    options = ["--set-as-default"] if kind.endswith("-default") else []
    options += ["--nri"] if kind.endswith("-nri") else []
    engine, _, name = case.partition("-")
    before, after = (GOLDEN / engine / f"{name}.{when}" for when in ("before", "after"))
    if before.exists():
        machine.config.write_bytes(before.read_bytes())
    untouched = machine.tree()
    assert machine("configure", version, "--dry-run", *options) == 0
    assert "+++ " in capsys.readouterr().out
    assert machine.tree() == untouched
    assert machine("configure", version, *options) == 0
    assert machine.config.read_bytes() == after.read_bytes()
    once = machine.tree()
    if before.exists():
        assert once["config.gpushare-backup"] == before.read_bytes()
    assert machine("configure", version, *options) == 0
    assert machine.tree() == once
    capsys.readouterr()
    assert machine("configure", version, "--dry-run", *options) == 0
    assert capsys.readouterr().out == ""
    assert machine("unconfigure", version) == 0
    assert machine.tree() == untouched


def test_golden_covers_every_engine():
    assert {case.partition("-")[0] for case in CASES} == {"docker", "podman", "containerd", "crio"}


@pytest.mark.parametrize(
    ("version", "text", "line"),
    [
        ("containerd-1.7", b"version = 2\n[plugins\n", "line 2"),
        ("docker-28.5", b'{\n  "debug": true,,\n}\n', "line 2"),
        ("podman-4.3", b"[engine]\nx = \n", "line 2"),
        ("crio-1.37", b"[crio]\n# \xff\n", "line 2"),
        ("crio-1.37", b'[crio]\nx = """\n\n', "line 3"),
    ],
)
def test_a_file_with_a_fault_is_left_alone_and_its_line_is_reported(machine, version, text, line, capsys):
    machine.config.write_bytes(text)
    untouched = machine.tree()
    assert machine("configure", version) == 1
    message = capsys.readouterr().err
    assert line in message
    assert str(machine.config) in message
    assert message.count("\n") == 1
    assert machine.tree() == untouched


def test_what_the_administrator_changed_meanwhile_stays(machine):
    machine.config.write_text('{\n  "debug": true,\n  "features": {"cdi": false}\n}\n')
    machine("configure", "docker-28.5", "--set-as-default")
    text = machine.config.read_text()
    assert json.loads(text)["features"] == {"cdi": True}
    machine.config.write_text(text.replace('"debug": true,', '"debug": true,\n  "tls": true,'))
    machine("unconfigure", "docker-28.5")
    expected = '{\n  "debug": true,\n  "tls": true,\n  "features": {"cdi": false}\n}\n'
    assert machine.config.read_text() == expected


def test_a_file_of_our_making_keeps_what_was_added_to_it(machine):
    machine("configure", "containerd-2.1")
    with machine.config.open("a") as file:
        file.write("[debug]\nlevel = 'info'\n")
    machine("unconfigure", "containerd-2.1")
    assert tomllib.loads(machine.config.read_text()) == {"version": 3, "debug": {"level": "info"}}


def test_owner_and_mode_stay(machine):
    machine.config.write_text("version = 2\n")
    machine.config.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(machine.config, 0, 1)
    before = machine.config.stat()
    machine("configure", "containerd-1.7")
    for path in (machine.config, machine.directory / "config.gpushare-backup"):
        after = path.stat()
        assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_a_trusted_symlink_stays_one(machine):
    there = machine.directory / "there"
    there.mkdir()
    (there / "real").write_text("version = 2\n")
    machine.config.symlink_to("there/real")
    assert machine("configure", "containerd-1.7") == 0
    assert machine.config.is_symlink()
    assert "gpushare" in (there / "real").read_text()
    assert machine("unconfigure", "containerd-1.7") == 0
    assert (there / "real").read_text() == "version = 2\n"


@pytest.mark.parametrize("what", ["directory", "file", "link"])
def test_what_others_can_write_is_refused(machine, what, capsys):
    there = machine.directory / "there"
    there.mkdir()
    real = there / "real"
    real.write_text("version = 2\n")
    machine.config.symlink_to(real)
    if what == "directory":
        there.chmod(0o777)
    elif what == "file":
        real.chmod(0o666)
    elif os.geteuid() == 0:
        os.lchown(machine.config, 1234, 1234)
    else:
        pytest.skip("only root can give a link away")
    assert machine("configure", "containerd-1.7") == 1
    assert "written by others" in capsys.readouterr().err
    assert real.read_text() == "version = 2\n"


def test_an_import_that_counts_is_the_file_that_is_edited(machine, capsys):
    part = machine.directory / "conf.d" / "99-nvidia.toml"
    part.parent.mkdir()
    cri = 'plugins."io.containerd.grpc.v1.cri".containerd.runtimes'
    part.write_text(f'version = 2\n[{cri}.nvidia.options]\nSystemdCgroup = true\n[{cri}.runc]\nruntime_type = "x"\n')
    machine.config.write_text('version = 2\nimports = ["conf.d/*.toml"]\n')
    untouched = machine.tree()
    assert machine("configure", "containerd-1.7") == 0
    assert "gpushare" in part.read_text()
    assert "gpushare" not in machine.config.read_text()
    assert machine("unconfigure", "containerd-1.7") == 0
    assert machine.tree() == untouched
    # Since 2.1 both count.
    assert machine("configure", "containerd-2.1") == 0
    assert "gpushare" in machine.config.read_text()
    assert part.read_bytes() == untouched["conf.d/99-nvidia.toml"]
    assert machine("configure", "containerd-2.1", "--dry-run") == 0


def written_anew(document: dict, path: str = "", depth: int = 0) -> str:
    """Returns the document as nvidia-ctk writes a file: sorted, without comments."""
    indent = "  " * depth
    lines = [
        f"{indent}{key} = {json.dumps(value)}\n" for key, value in sorted(document.items()) if type(value) is not dict
    ]
    for key, value in sorted(document.items()):
        if type(value) is dict:
            whole = f"{path}.{json.dumps(key)}" if "." in key else f"{path}.{key}".lstrip(".")
            lines.append(f"\n{indent}[{whole}]\n{written_anew(value, whole, depth + 1)}")
    return "".join(lines)


def as_nvidia_ctk(machine: Machine) -> None:
    """Does as nvidia-ctk: copies the CRI plugin's settings into a file of its own, adds its handler, and imports it."""
    document = tomllib.loads(machine.config.read_text())
    name = next(name for name in document["plugins"] if "cri" in name)
    part = {"version": document["version"], "plugins": {name: json.loads(json.dumps(document["plugins"][name]))}}
    part["plugins"][name]["containerd"]["runtimes"]["nvidia"] = {"options": {"BinaryName": "/usr/bin/nvidia"}}
    (machine.directory / "conf.d").mkdir(exist_ok=True)
    (machine.directory / "conf.d" / "99-nvidia.toml").write_text(written_anew(part))
    machine.config.write_text(written_anew({**document, "imports": [f"{machine.directory}/conf.d/*.toml"]}))


@pytest.mark.parametrize("version", ["containerd-1.6", "containerd-1.7", "containerd-2.1", "containerd-2.4"])
@pytest.mark.parametrize("options", [[], ["--set-as-default"], ["--nri"], ["--nri", "--set-as-default"]], ids=str)
def test_what_another_program_wrote_anew_and_copied_is_taken_out(machine, version, options, capsys):
    """nvidia-ctk runs before or after ours, and ours a second time: what is left is as if ours had never run."""
    if version == "containerd-1.6" and "--nri" in options:
        pytest.skip("it has no NRI")
    number, cri = (3, "io.containerd.cri.v1.runtime") if version > "containerd-2" else (2, "io.containerd.grpc.v1.cri")
    before = (
        f"# the administrator's\nversion = {number}\ndisabled_plugins = ['io.containerd.nri.v1.nri', 'x']\n"
        f"[plugins.'{cri}'.containerd]\ndefault_runtime_name = 'runc' # theirs\n"
        f"[plugins.'{cri}'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
    )
    machine.config.write_text(before)
    as_nvidia_ctk(machine)
    theirs = machine.tree()
    assert machine("configure", version, *options) == 0
    assert machine.tree() != theirs
    assert machine("unconfigure", version) == 0
    assert machine.tree() == theirs
    for again in (False, True):
        (machine.directory / "conf.d" / "99-nvidia.toml").unlink()
        machine.config.write_text(before)
        assert machine("configure", version, *options) == 0
        as_nvidia_ctk(machine)
        assert "gpushare" in machine.config.read_text()
        if again:
            assert machine("configure", version, *options) == 0
            # In one place only, between our marker lines.
            text = {name: data.decode() for name, data in machine.tree().items() if "backup" not in name}
            assert sum('BinaryName = "/usr/bin/gpushare-runtime' in data for data in text.values()) == 1
            assert machine("configure", version, "--dry-run", *options) == 0
        assert machine("unconfigure", version) == 0
        assert machine.tree() == theirs


def test_crios_own_files_say_what_our_handler_is_like(machine, capsys):
    main = machine.directory / "crio.conf"
    main.write_text(
        '[crio.runtime]\ndefault_runtime = "runc"\n[crio.runtime.runtimes.runc]\nruntime_path = "/usr/bin/runc"\n'
        'monitor_path = "/usr/bin/conmon"\nallowed_annotations = ["a"]\n'
        '[crio.nri.default_validator]\nnri_validator_required_plugins = ["balloons"]\n'
    )
    machine.config = machine.directory / "crio.conf.d" / "99-gpushare.conf"
    assert machine("configure", "crio-1.37", "--nri") == 0
    assert "start it again as it was started" in capsys.readouterr().out
    ours = tomllib.loads(machine.config.read_text())["crio"]
    assert ours["runtime"]["runtimes"]["gpushare"] == {
        "runtime_path": WRAPPER, "runtime_type": "oci", "monitor_path": "/usr/bin/conmon", "allowed_annotations": ["a"],
    }  # fmt: skip
    assert ours["nri"]["default_validator"]["nri_validator_required_plugins"] == ["balloons", "gpushare"]
    assert machine("unconfigure", "crio-1.37") == 0
    assert not machine.config.exists()


@pytest.mark.parametrize(
    ("version", "nri", "message"),
    [
        ("containerd-1.7", None, "NRI is off"),
        ("containerd-1.7", "required", "cannot require a plugin"),
        ("containerd-2.1", None, "cannot require a plugin"),
        ("containerd-2.4", "optional", "not required"),
        ("containerd-2.4", "required", ""),
        ("crio-1.37", None, "not required"),
        ("crio-1.37", "required", ""),
    ],
)
def test_status_states_what_nri_would_let_through(machine, version, nri, message, capsys):
    machine("configure", version, *([f"--nri={nri}"] if nri else []))
    capsys.readouterr()
    assert machine("status", version) == 0
    out = capsys.readouterr().out
    assert message in out
    assert ("NRI" in out) == bool(message)


def test_nri_that_an_import_sets_is_set_there(machine, capsys):
    part = machine.directory / "conf.d" / "nri.toml"
    part.parent.mkdir()
    part.write_text('version = 2\n[plugins."io.containerd.nri.v1.nri"]\ndisable = true\n')
    machine.config.write_text('version = 2\nimports = ["conf.d/*.toml"]\n')
    untouched = machine.tree()
    assert machine("configure", "containerd-1.7", "--nri") == 0
    assert "disable = false" in part.read_text()
    assert "nri" not in machine.config.read_text().replace("conf.d", "")
    capsys.readouterr()
    assert machine("status", "containerd-1.7") == 0
    assert "NRI is on" in capsys.readouterr().out
    assert machine("unconfigure", "containerd-1.7") == 0
    assert machine.tree() == untouched


def test_an_engine_without_nri_reports_it(machine, capsys):
    assert machine("configure", "containerd-1.6", "--nri") == 1
    assert "before 1.7 has no NRI" in capsys.readouterr().err
    assert machine("configure", "docker-28.5", "--nri") == 2
    assert "--nri is for containerd and crio" in capsys.readouterr().err
    assert machine.tree() == {}


def test_the_first_format_is_not_for_containerd_2(machine, capsys):
    machine.config.write_text('disabled_plugins = ["cri"]\n')
    assert machine("configure", "containerd-2.1") == 1
    assert "containerd config migrate" in capsys.readouterr().err


def test_status_states_what_is_missing(machine, capsys):
    assert machine("status", "docker-20.10", "--json") == 1
    found = json.loads(capsys.readouterr().out)["engines"][0]
    assert (found["version"], found["configured"]) == ("20.10.24", False)
    assert any("before 24" in line for line in found["missing"])
    machine("configure", "docker-28.5", "--set-as-default")
    capsys.readouterr()
    assert machine("status", "docker-28.5") == 0
    message = capsys.readouterr().out
    assert "28.5.2" in message
    assert " configured " in message
    assert "missing" not in message
    machine.config.write_text("{")
    assert machine("status", "docker-28.5") == 1
    assert "line 1" in capsys.readouterr().out


def test_restart_shows_how_where_it_cannot(machine, capsys):
    if Path("/run/systemd/system").is_dir():
        pytest.skip("systemd runs here, and would reload the machine's own engine")
    assert machine("configure", "containerd-1.7", "--restart") == 1
    assert "since systemd does not run here; its containers go on" in capsys.readouterr().err
    assert machine.config.exists()
    assert machine("configure", "podman-4.3", "--config", str(machine.directory / "p.conf"), "--restart") == 0


@pytest.mark.parametrize(
    ("version", "notified"), [("docker-20.10", False), ("docker-26.1", True), ("docker-28.5", False)]
)
def test_what_docker_does_not_read_at_a_reload(machine, capsys, version, notified):
    for again in (False, True):
        assert machine("configure", version) == 0
        assert ("knows CDI devices from its next start on: end it and start it again" in capsys.readouterr().out) == (
            notified and not again
        )


def test_the_manifest_names_the_handler(capsys):
    assert main(["runtime", "manifest", "--runtime-name", "shared"]) == 0
    assert capsys.readouterr().out == (
        "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata:\n  name: shared\nhandler: shared\n"
    )


def test_the_diff_can_be_applied(machine, capsys):
    machine.config.write_bytes(b'version = 2\n[grpc]\n  address = "/x"')
    machine("configure", "containerd-1.7", "--dry-run")
    diff = capsys.readouterr().out
    subprocess.run(
        ["git", "apply", "-p0", "--unsafe-paths", "--directory=/"], input=diff, text=True, cwd="/", check=True
    )
    applied = machine.config.read_bytes()
    machine.config.write_bytes(b'version = 2\n[grpc]\n  address = "/x"')
    machine("configure", "containerd-1.7")
    assert machine.config.read_bytes() == applied
