"""What `gpushare install` and `gpushare uninstall` do, step by step."""

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from gpushare import DISTRIBUTION, __version__, advice, paths
from gpushare.engines import configuration
from gpushare.engines.edit import Options
from gpushare.errors import FailedError, UsageError
from gpushare.install import conditions, place, service
from gpushare.install.items import CONFIG, NRI_UNIT, PROMETHEUS_UNIT, STATE, SYSUSERS, TMPFILES, UNIT, items
from gpushare.install.manifest import NAME, Manifest
from gpushare.install.place import Step
from gpushare.install.root import Root

_WORDS = {"put": "wrote", "replace": "replaced", "remove": "removed", "left": "left"}
_WOULD = {"put": "write", "replace": "replace", "remove": "remove", "left": "leave"}


def _open(directory: Path) -> Root:
    root = Root(directory)
    if root.machine and os.geteuid() != 0:
        raise FailedError("only root can change what this machine starts: run it with sudo")
    return root


def _report(root: Root, step: Step, *, dry: bool) -> None:
    word = (_WOULD if dry else _WORDS).get(step.what)
    if word and (step.what != "left" or step.why):
        line = f"{'would ' if dry else ''}{word} {root.at(step.path)}"
        print(f"{line}: {step.why}" if step.why else line)


def install(directory: Path, engine_names: Sequence[str], *, dry_run: bool, start: bool) -> None:
    """Makes the root in `directory` a node, and configures these engines. Raises GpushareError."""
    root = _open(directory)
    if root.machine:
        conditions.check_own_files()
    elif engine_names:
        raise UsageError("engines of another root: run `gpushare runtime configure` there")
    engines = [configuration.plan(configuration.ENGINES[name], Options(), undo=False) for name in engine_names]
    with contextlib.nullcontext() if dry_run else root.locked():
        manifest = Manifest.load(root) or Manifest()
        steps = place.plan(root, items(root.directory), manifest)
        place.check(root, steps)
        changes = any(step.what in place.CHANGES for step in steps)
        if dry_run or not (changes or not manifest.complete or manifest.version != __version__):
            for step in steps:
                _report(root, step, dry=dry_run)
            if not changes:
                print("nothing to change")
        else:
            _carry_out(root, steps, manifest, start=start)
    for planned in engines:
        if dry_run:
            print("".join(change.diff() for change in planned), end="")
        else:
            configuration.carry_out(planned)
    if root.machine:
        _list_engines()


def _carry_out(root: Root, steps: list[Step], manifest: Manifest, *, start: bool) -> None:
    for step in place.put(root, steps, manifest):
        _report(root, step, dry=False)
    if root.machine:
        _group(root, manifest)
        disabled = any(step.what == "left" and step.item and step.item.kind == "enable" for step in steps)
        _start(start=start, disabled=disabled)
    else:
        print(f"at the boot of {root.directory} systemd makes the group {service.GROUP} and starts {UNIT}")
    manifest.complete = True
    manifest.save(root)


def _group(root: Root, manifest: Manifest) -> None:
    if service.group_exists():
        return
    manifest.group = True
    manifest.save(root)
    why = service.make_group(SYSUSERS)
    if why:
        print(f"no group {service.GROUP}, so root alone may ask for grants: {why}")
    else:
        print(f"made the group {service.GROUP}, whose members may ask for grants: usermod -aG {service.GROUP} USER")


def _start(*, start: bool, disabled: bool) -> None:
    """Starts or restarts the daemon. `disabled`: a stopped daemon stays stopped. Raises FailedError; the next run
    continues from here."""
    if not advice.systemd_runs():
        print(f"systemd does not run here: let your init start `{advice.gpushare('daemon')}`, or start it by hand")
        return
    service.command("systemd-tmpfiles", "--create", str(TMPFILES))  # the daemon makes them too
    why = service.command("systemctl", "daemon-reload")
    verb = "restart" if service.daemon_is_active() else "start"
    start = start and not (disabled and verb == "start")
    if start and not why:
        why = service.command("systemctl", verb, UNIT)
    if why:
        if verb == "start":  # not after a failed restart: tenants wait for the daemon
            service.command("systemctl", "stop", UNIT)
        raise FailedError(
            f"all files are in place, but {UNIT} does not run ({why}): see `journalctl -u gpushare`, and without "
            f"an NVIDIA driver set `simulate` in {CONFIG}/gpushare.toml; then run `gpushare install` again"
        )
    if start:
        print(f"{UNIT}: {verb}ed")
        service.command("systemctl", "try-restart", NRI_UNIT, PROMETHEUS_UNIT)  # where they were enabled


def uninstall(directory: Path, *, dry_run: bool, purge: bool, force: bool) -> None:
    """Removes what `install` put there. `purge`: also the node's records and the group. `force`: although grants live.
    Raises GpushareError."""
    root = _open(directory)
    with contextlib.nullcontext() if dry_run else root.locked():
        where = conditions.layout(root)
        if root.machine and not force:
            conditions.refuse_while_grants_live(where)
            conditions.refuse_while_required()
        manifest = Manifest.load(root)
        if manifest is None and not purge:
            print(
                f"nothing to change: without {root.at(NAME)} nothing is known to be of `gpushare install`"
                if paths.PACKAGING.is_dir()
                else "nothing to change: this gpushare came in a package, which takes it away: apt purge gpushare"
            )
            return
        manifest = manifest or Manifest()
        steps = place.removal(root, manifest)
        place.check(root, steps)
        if dry_run:
            for step in steps:
                _report(root, step, dry=True)
            if purge:
                print(f"would remove {root.at(STATE)} with all in it")
            return
        if root.machine:
            _stop()
        if purge and root.machine:
            conditions.refuse_while_daemon_runs(where)
        for step in place.take(root, steps, manifest):
            _report(root, step, dry=False)
        if root.machine and advice.systemd_runs():
            service.command("systemctl", "daemon-reload")
        _state(root, manifest, purge=purge)
        if purge and root.machine:
            conditions.remove_run_files(where)
    if root.machine:
        _list_configured()


def _stop() -> None:
    if advice.systemd_runs() and service.daemon_is_active():
        why = service.command("systemctl", "stop", UNIT)
        if why:
            raise FailedError(f"{UNIT} cannot be stopped ({why}), so nothing is removed")
        print(f"{UNIT}: stopped")
    if advice.systemd_runs():
        service.command("systemctl", "disable", "--now", NRI_UNIT, PROMETHEUS_UNIT)  # where they were enabled


def _state(root: Root, manifest: Manifest, *, purge: bool) -> None:
    state = root.at(STATE)
    if not purge:
        if state.exists():
            print(f"left {state}, what the node has written down: `{advice.gpushare('uninstall --purge')}` removes it")
        if manifest.group:
            print(f"left the group {service.GROUP}, with its members")
        return
    if state.is_symlink():
        raise FailedError(f"{state} is a symlink and not followed: remove what it names by hand")
    if state.exists():
        print(f"removing {state} with all in it: the record of grants and of what they used")
        try:
            shutil.rmtree(state)
        except OSError as error:
            raise FailedError(f"{error.filename} cannot be removed: {error.strerror}") from None
    if manifest.group and root.machine and service.group_exists():
        why = service.command("groupdel", service.GROUP)
        print(f"left the group {service.GROUP}: {why}" if why else f"removed the group {service.GROUP}")


def _list_engines() -> None:
    found = list(configuration.status(Options(), None))
    print("container engines here:" if found else "no container engine is here yet; `gpushare runtime status` then")
    for one in found:
        to_do = advice.gpushare(f"runtime configure --engine {one.engine} --restart")
        if one.configured:
            to_do = "configured"
        print(f"  {one.engine} {one.version or ''}: {to_do}")


def _list_configured() -> None:
    for one in configuration.status(Options(), None):
        if one.configured:
            undo = advice.gpushare(f"runtime unconfigure --engine {one.engine} --restart")
            print(f"{one.engine} still names gpushare: {undo}")
    if paths.PACKAGING.is_dir():  # else a package has it
        pip = advice.as_root(f"{sys.executable} -m pip")
        print(f"gpushare itself is left, and of no use to an engine: at last `{pip} uninstall {DISTRIBUTION}`")
