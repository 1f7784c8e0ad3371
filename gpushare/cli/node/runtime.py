"""gpushare runtime ..."""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare.cli.command import Family, add_json, print_json
from gpushare.cli.parser import Parser
from gpushare.errors import UsageError

if TYPE_CHECKING:
    from gpushare.engines.edit import Options

ENGINE_NAMES = ("docker", "podman", "containerd", "crio", "k3s", "rke2")
NRI_ENGINES = ("containerd", "crio", "k3s", "rke2")
_NRI_SAID = "containerd and crio, k3s and rke2"


def _name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", text) or len(text) > 63 or text in ("runc", "crun"):
        raise UsageError(f"{text!r} is not a name for a runtime of ours: lower-case letters, digits, - and .")
    return text


def _absolute(text: str) -> Path:
    if not text.startswith("/") or not text.isprintable():
        raise UsageError(f"{text!r} is not an absolute path")
    return Path(text)


class RuntimeCommand(Family):
    """configure docker, podman, containerd, CRI-O, k3s and RKE2"""

    examples = (
        ("gpushare runtime status", "each engine on this node, and what is missing"),
        ("sudo gpushare runtime configure --engine docker --restart", "containers may ask docker for shares"),
    )

    def prepare_parser(self, parser: Parser) -> None:
        configure = parser.verb(
            "configure",
            self._configure,
            "add gpushare's runtime to an engine's configuration (root)",
            ("gpushare runtime configure --engine docker --dry-run", "what would be changed, as a diff"),
            ("sudo gpushare runtime configure --engine podman", "containers may ask podman for shares"),
            ("sudo gpushare runtime configure --engine containerd --nri", "through NRI, required for each container"),
            ("sudo gpushare runtime configure --engine k3s --restart", "the containerd of k3s, by its template"),
        )
        configure.set_defaults(undo=False)
        unconfigure = parser.verb(
            "unconfigure",
            self._configure,
            "remove what `configure` added to an engine's configuration (root)",
            ("gpushare runtime unconfigure --engine docker --dry-run", "what would be removed, as a diff"),
            ("sudo gpushare runtime unconfigure --engine docker --restart", "docker no longer knows gpushare"),
        )
        unconfigure.set_defaults(undo=True)
        for verb in (configure, unconfigure):
            verb.add_argument(
                "--engine",
                "--runtime",
                choices=ENGINE_NAMES,
                required=True,
                metavar="ENGINE",
                help=f"engine to configure: {', '.join(ENGINE_NAMES)}",
            )
            verb.flag("--dry-run", "print the change as a diff and write nothing")
            verb.flag("--restart", "make the engine read the change now, by a reload if it supports one")
        configure.flag(
            "--set-as-default",
            "use it for all containers; those without a request are unaffected (default: only those that name it)",
        )
        configure.option(
            "--runtime-path", "PATH", "path of the runtime (default: the installed gpushare-runtime)", _absolute
        )
        configure.add_argument(
            "--enable-cdi", dest="cdi", action=argparse.BooleanOptionalAction, default=True,
            help="enable CDI devices in docker and containerd (default: yes)",
        )  # fmt: skip
        configure.add_argument(
            "--nri", nargs="?", const="required", choices=("required", "optional"),
            help="enable NRI in containerd, crio, k3s or rke2 for `gpushare adapter nri` (default: unchanged); "
            "required (also --nri alone): if the engine supports it, no container starts without that plugin",
        )  # fmt: skip

        status = parser.verb(
            "status",
            self._status,
            "each engine on this node: version, configured or not, what is missing\n\nExit status 1 if anything is.",
            ("gpushare runtime status", "all installed engines"),
            ("gpushare runtime status --engine crio --json", "one engine, as JSON"),
        )
        status.add_argument(
            "--engine",
            "--runtime",
            choices=ENGINE_NAMES,
            metavar="ENGINE",
            help=f"this engine, installed or not: {', '.join(ENGINE_NAMES)} (default: all installed engines)",
        )
        add_json(status)
        for verb in (configure, unconfigure, status):
            verb.option("--config", "PATH", "the engine's configuration file (default: the one that it reads)", Path)
            verb.option(
                "--executable-path",
                "PATH",
                "the engine's executable, run to get its version (default: found in PATH)",
                Path,
                dest="executable",
            )
            verb.option("--hooks-dir", "PATH", "podman's hooks directory (default: the one that it reads)", Path)

        manifest = parser.verb(
            "manifest",
            self._manifest,
            "print a Kubernetes RuntimeClass, for `kubectl apply -f -`",
            ("gpushare runtime manifest | kubectl apply -f -", "pods can then set runtimeClassName: gpushare"),
        )
        for verb in (configure, unconfigure, status, manifest):
            verb.option("--runtime-name", "NAME", "the runtime's name for containers (default gpushare)", _name)

    def _options(self, args: argparse.Namespace) -> "Options":
        from dataclasses import fields

        from gpushare.engines.edit import Options

        given = {field.name: getattr(args, field.name, None) for field in fields(Options)}
        return Options(**{name: value for name, value in given.items() if value is not None})

    def _configure(self, args: argparse.Namespace) -> int:
        from gpushare.engines import configuration

        if getattr(args, "nri", None) and args.engine not in NRI_ENGINES:
            raise UsageError(f"--nri is for {_NRI_SAID}: {args.engine} has no NRI that carries a share")
        options = self._options(args)
        if args.engine == "containerd" and not args.undo:
            configuration.check_containerd(options)
        engine = configuration.engine_of(args.engine, options)
        changes = configuration.plan(engine, options, args.undo)
        if args.dry_run:
            sys.stdout.write("".join(change.diff() for change in changes))
            return 0
        for backup in configuration.carry_out(changes):
            print(f"kept as it was: {backup}")
        changed = [change for change in changes if change.changes]
        for change in changed:
            print(f"{'removed' if change.new is None else 'wrote'} {change.path}")
        if not changed:
            print(f"{engine.name}: nothing to change")
        if args.restart:
            print(f"{engine.name} reads it: {configuration.reload(engine)}")
        elif changed:
            print(f"{engine.name} reads it after: {configuration.how_to_reload(engine)}")
        if note := configuration.unread(engine, options, changes):
            print(note)
        return 0

    def _status(self, args: argparse.Namespace) -> int:
        from gpushare.engines import configuration

        found = list(configuration.status(self._options(args), args.engine))
        if args.json:
            from dataclasses import asdict

            print_json({"engines": [asdict(one) for one in found]})
        for one in found if not args.json else ():
            state = "configured" if one.configured else "not configured"
            print(f"{one.engine:10}  {one.version or 'not installed':13}  {state:14}  {one.file}")
            for line in one.missing:
                print(f"{'':10}  missing: {line}")
            for line in one.notes:
                print(f"{'':10}  note: {line}")
        if not found and not args.json:
            print("no container engine is installed here")
        return 0 if all(not one.missing for one in found) else 1

    def _manifest(self, args: argparse.Namespace) -> int:
        from gpushare.engines import configuration

        sys.stdout.write(configuration.runtime_class(self._options(args)))
        return 0
