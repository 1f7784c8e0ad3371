"""The flags that dockerd is started with. It does not start, nor reread daemon.json, where a flag and that file set the
same thing; only what `--add-runtime` and `runtimes` say is added up (from 18.09 on)."""

import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpushare.engines import files
from gpushare.errors import FailedError

# In systemd's order: a unit of the first directory that has one is used, and of drop-ins with one name the first.
_UNITS = tuple(
    Path(directory, "systemd/system") for directory in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
)
_UNIT = "docker.service"
_PIDFILE = Path("/run/docker.pid")
# Without systemd, its init script takes the flags from a variable of one of these.
_DEFAULTS = (Path("/etc/default/docker"), Path("/etc/conf.d/docker"), Path("/etc/sysconfig/docker"))
_VARIABLES = ("DOCKER_OPTS", "OPTIONS")

# By flag, the key of daemon.json that sets the same thing.
_KEYS = {
    "default-runtime": "default-runtime",
    "feature": "features",
    "cdi-spec-dir": "cdi-spec-dirs",
}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of dockerd: its name without dashes, its value, and what gives it."""

    name: str
    value: str
    place: str


def conflicts(path: Path, keys: Collection[str], verb: str) -> list[str]:
    """Returns a sentence for each of these keys of the daemon.json at the path that a flag sets too. `verb`: that the
    file has them, or would get them."""
    found = []
    named = config_file()
    if named and named[0] != path.absolute():
        return []  # the dockerd of these flags reads another file
    for flag in flags():
        key = _KEYS.get(flag.name)
        if key in keys:
            other = ", or leave CDI to its default: --no-enable-cdi" if key == "features" else ""
            found.append(
                f"dockerd is started with --{flag.name} ({flag.place}) and {path} {verb} {key!r} too: it refuses to "
                f"start with both; move the flag's {flag.value!r} into the file{other}"
            )
    return list(dict.fromkeys(found))


def config_file() -> tuple[Path, str] | None:
    """Returns the file that a flag names in place of the usual daemon.json, and what gives the flag; None: no flag."""
    named = [flag for flag in flags() if flag.name == "config-file" and flag.value]
    return (Path("/", named[-1].value), named[-1].place) if named else None  # systemd starts dockerd in /


def spec_dirs() -> list[str]:
    """Returns the directories of CDI specs that flags name; empty if none does."""
    return [flag.value for flag in flags() if flag.name == "cdi-spec-dir"]


def flags() -> list[Flag]:
    """Returns those that the service would start dockerd with, and those of the one that runs."""
    found = [*_of_unit(), *_of_process()]
    return list({(flag.name, flag.value): flag for flag in reversed(found)}.values())[::-1]


def _of_process() -> Iterator[Flag]:
    try:
        pid = int(_PIDFILE.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, ValueError):
        return
    if Path(words[0]).name == "dockerd":
        yield from _parsed(words[1:], f"process {pid}")


def _of_unit() -> Iterator[Flag]:
    unit = next((directory / _UNIT for directory in _UNITS if _read(directory / _UNIT) is not None), None)
    if unit is None:
        for path in _DEFAULTS:
            given = _assignments(_read(path) or "")
            for name in _VARIABLES:
                yield from _parsed(_split(given.get(name, "")), str(path))
        return
    drop_ins: dict[str, Path] = {}
    for directory in _UNITS:
        for path in directory.joinpath(f"{_UNIT}.d").glob("*.conf"):
            drop_ins.setdefault(path.name, path)
    command: tuple[str, Path] | None = None
    variables: dict[str, tuple[str, Path]] = {}
    for path in (unit, *(drop_ins[name] for name in sorted(drop_ins))):
        for key, value in _settings(_read(path) or ""):
            if key == "ExecStart":
                command = (value, path) if value else None
            elif key == "Environment":
                for word in _split(value):
                    name, _, text = word.partition("=")
                    variables[name] = text, path
            elif key == "EnvironmentFile":
                named = Path(value.removeprefix("-"))
                for name, text in _assignments(_read(named) or "").items():
                    variables[name] = text, named
    if command is not None:
        yield from _expanded(*command, variables)


def _expanded(command: str, path: Path, variables: dict[str, tuple[str, Path]]) -> Iterator[Flag]:
    """A word `$NAME` is the words of the variable's value; `${NAME}` is that value, wherever it occurs."""
    parts: list[tuple[list[str], str]] = []
    for word in _split(command)[1:]:
        place = str(path)
        if word.startswith("$") and word[1:] in variables:
            value, source = variables[word[1:]]
            parts.append((_split(value), str(source)))
            continue
        for name, (value, source) in variables.items():
            if f"${{{name}}}" in word:
                word, place = word.replace(f"${{{name}}}", value), str(source)
        parts.append(([word], place))
    words = [(word, place) for some, place in parts for word in some]
    yield from _placed(words)


def _parsed(words: list[str], place: str) -> Iterator[Flag]:
    yield from _placed([(word, place) for word in words])


def _placed(words: list[tuple[str, str]]) -> Iterator[Flag]:
    """`--name=value` and `--name value`; flags without a value are not asked for."""
    for number, (word, place) in enumerate(words):
        if not word.startswith("--"):
            continue
        name, sign, value = word[2:].partition("=")
        if not sign and number + 1 < len(words):
            value = words[number + 1][0]
        yield Flag(name, value, place)


def _settings(unit: str) -> Iterator[tuple[str, str]]:
    """The assignments of a unit's section [Service]."""
    section = ""
    for line in unit.replace("\\\n", " ").splitlines():
        bare = line.strip()
        if bare.startswith("["):
            section = bare
        elif section == "[Service]" and bare and bare[0] not in "#;":
            key, _, value = bare.partition("=")
            yield key.strip(), value.strip()


def _assignments(text: str) -> dict[str, str]:
    """The variables of a file of lines NAME=VALUE, as shells and systemd read it."""
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        name, sign, value = line.strip().removeprefix("export ").partition("=")
        if sign and name.isidentifier():
            found[name] = " ".join(_split(value))
    return found


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=False)
    except ValueError:  # a quotation that does not end
        return text.split()


def _read(path: Path) -> str | None:
    try:
        return files.read(path)
    except FailedError:
        return None
