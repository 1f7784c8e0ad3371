"""Settings that have to be lists and are not: the file is left alone, and named."""

import pytest

from gpushare.cli.main import main

V2 = 'version = 2\n[plugins."io.containerd.'
CASES = {
    "imports": ("containerd x v1.7.24 x", 'version = 2\nimports = "/x/conf.d/*.toml"\n'),
    "pod_annotations": (
        "containerd x v1.7.24 x",
        f'{V2}grpc.v1.cri".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\npod_annotations = "a"\n',
    ),
    "required_plugins": (
        "containerd x v2.2.0 x",
        f'{V2}nri.v1.nri".default_validator]\nrequired_plugins = "balloons"\n',
    ),
    "hooks_dir": ("podman version 5.4.0", '[engine]\nhooks_dir = "/x"\n'),
    "cdi_spec_dirs": ("podman version 5.4.0", '[engine]\ncdi_spec_dirs = "/x"\n'),
}


@pytest.mark.parametrize("key", CASES)
def test_a_string_in_place_of_a_list_is_named(tmp_path, key, capsys):
    """Not taken for a list of its letters, of which / is a directory."""
    tmp_path.chmod(0o755)
    version, text = CASES[key]
    engine = version.partition(" ")[0]
    program, config = tmp_path / engine, tmp_path / "config"
    program.write_text(f"#!/bin/sh\necho {version}\n")
    program.chmod(0o755)
    config.write_text(text)
    given = ["--engine", engine, "--config", str(config), "--executable-path", str(program)]
    message = f"{key} has to be a list: write {key} = ["
    if key != "cdi_spec_dirs":  # of what we add nothing depends on it
        nri = ["--nri"] if key == "required_plugins" else []
        assert main(["runtime", "configure", *given, *nri, "--dry-run"]) == 1
        answer = capsys.readouterr().err
        assert f" is left alone: {message}" in answer
        assert str(config) in answer or nri
    if key != "required_plugins":
        assert main(["runtime", "status", *given]) == 1
        assert f"{config} is left alone: {message}" in capsys.readouterr().out
