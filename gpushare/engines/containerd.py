"""containerd: adds a runtime handler to the CRI plugin, a copy of its default handler with another binary.

It goes into the main file: before 2.1 the CRI plugin's settings in an imported file replace all those of the main file.
If an imported file does so already, that file is effective, and is edited instead. An imported file that the
administrator names is edited as what it is, an addition to the main file: `config.toml` above its `.d` directory.
"""

import fnmatch
import glob
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.engines import files, k0s, nri, toml_text
from gpushare.engines.edit import ANNOTATIONS, Edit, Facts, Options, Reload, Version, spec_dirs_lack, toml_edit
from gpushare.engines.toml_text import table
from gpushare.errors import FailedError
from gpushare.paths import RUNTIME_WRAPPER

_CRI = {1: "cri", 2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
MERGES = (2, 1)  # the first version that merges the tables of imported files into those of the main file
_FILE = Path("/etc/containerd/config.toml")
_SHIM = "io.containerd.runc.v2"


def _format(document: Mapping[str, Any]) -> int:
    version = document.get("version", 1)
    return version if isinstance(version, int) else 1


def _cri(document: Mapping[str, Any]) -> tuple[str, str]:
    return "plugins", _CRI[min(max(_format(document), 1), 3)]


def _nri(document: Mapping[str, Any]) -> tuple[str, str]:
    return nri.containerd_table(_format(document))


def _patterns(path: Path, document: Mapping[str, Any]) -> list[str]:
    """Returns the patterns of the files that the file at the path imports."""
    listed = toml_text.listed(document, ("imports",), str(path))
    return [str(path.parent / str(pattern)) for pattern in listed]


def _imported(path: Path, document: Mapping[str, Any], *, ours: bool = False) -> list[tuple[Path, dict[str, Any]]]:
    """Returns the files that `document` imports, in containerd's order. `ours`: include our parts."""
    found = []
    for pattern in _patterns(path, document):
        for name in sorted(glob.glob(pattern)):  # noqa: PTH207 - it has the directory in it
            text = files.read(Path(name))
            if text is not None and Path(name) != path:
                found.append((Path(name), toml_text.parse(text if ours else toml_text.strip(text, name), name)))
    return found


def _importing(path: Path) -> tuple[Path, dict[str, Any]] | None:
    """Returns the main file that imports the one at the path, and its settings without ours; None if there is none."""
    main = path.parent.parent / "config.toml"
    text = files.read(main) if path.parent.suffix == ".d" else None
    if text is None:
        return None
    document = toml_text.parse(toml_text.strip(text, str(main)), str(main))
    return (main, document) if imports(main, document, path) else None


def imports(main: Path, document: Mapping[str, Any], path: Path) -> bool:
    """Whether the main file, with these settings, imports the file at the path, or would if there were one."""
    return any(fnmatch.fnmatchcase(str(path), pattern) for pattern in _patterns(main, document))


def _counts(path: Path, version: Version | None, plugin: Callable[[Mapping[str, Any]], tuple[str, str]]) -> Path:
    """Returns the file, main or imported, whose settings of a plugin are effective."""
    text = files.read(path)
    if text is None or version is None or version >= MERGES:
        return path
    document = toml_text.parse(toml_text.strip(text, str(path)), str(path))
    replacing = [name for name, value in _imported(path, document) if table(value, *plugin(value))]
    return replacing[-1] if replacing else path


def _whole(path: Path, document: Mapping[str, Any], *, ours: bool = False) -> dict[str, Any]:
    """Returns `document` merged with its imports of the same format, and with the main file that imports it. `ours`:
    include our parts."""
    main = _importing(path)
    if main is not None and _format(main[1]) == _format(document):
        return toml_text.deep(_whole(*main, ours=ours), document)
    whole = dict(document)
    for _, other in _imported(path, document, ours=ours):
        if _format(other) == _format(document):
            whole = toml_text.deep(whole, other)
    return whole


def _empty(version: Version | None) -> dict[str, Any]:
    return {"version": 3 if version is None or version >= (2,) else 2}


def settings(path: Path, text: str, options: Options, version: Version | None) -> toml_text.Settings:
    """Returns what belongs into the file at `path`. `text`: its text without our parts."""
    document = toml_text.parse(text, str(path))
    wanted: dict[toml_text.Path, dict[str, Any]] = {}
    main = _importing(path)
    # In a file that sets nothing we choose the format; any other file without a version has format 1.
    if not document:
        document = {"version": _format(main[1])} if main else _empty(version)
        wanted[()] = dict(document)
    number = _format(document)
    if number < 2 and version and version >= (2,):
        raise FailedError(
            f"{path} is left alone: containerd {version[0]} reads settings of plugins in formats 2 and 3 only, and it "
            "says no version: see `containerd config migrate`"
        )
    cri = _cri(document)
    whole = _whole(path, document)
    if main and version and version < MERGES and table(main[1], *cri) and not table(document, *cri):
        raise FailedError(
            f"{path} is left alone: containerd before 2.1 would take its settings for pods in place of all those of "
            f"{main[0]}: name that file"
        )
    here = table(whole, *cri, "containerd")
    runtimes = table(here, "runtimes")
    usual = table(runtimes, str(here.get("default_runtime_name", "runc")))
    if not str(usual.get("runtime_type", "")).startswith("io.containerd.runc."):
        usual = table(runtimes, "runc") or {"runtime_type": _SHIM}
    model = {"runtime_type": _SHIM, **{key: value for key, value in usual.items() if not isinstance(value, dict)}}
    for key in ("pod_annotations", "container_annotations"):
        listed = toml_text.listed(model, (key,), str(path))
        model[key] = [*(name for name in listed if name not in ANNOTATIONS), *ANNOTATIONS]
    if options.cdi:
        wanted[cri] = {"enable_cdi": True}
    handlers = (*cri, "containerd", "runtimes")
    if not runtimes:
        # containerd provides runc by default, but only while the file names no runtime.
        wanted[(*handlers, "runc")] = {"runtime_type": _SHIM}
    wanted[(*handlers, options.runtime_name)] = model
    wanted[(*handlers, options.runtime_name, "options")] = {
        **table(usual, "options"),
        "BinaryName": str(options.runtime_path),
    }
    if options.set_as_default:
        wanted[(*cri, "containerd")] = {"default_runtime_name": options.runtime_name}
    return wanted


def nri_settings(path: Path, text: str, options: Options, version: Version | None) -> toml_text.Settings:
    """Returns the NRI settings for the file at `path`. `text`: its text without our parts."""
    if not options.nri:
        return {}
    document = toml_text.parse(text, str(path))
    if not document:
        main = _importing(path)
        document = {"version": _format(main[1])} if main else _empty(version)
    return nri.containerd(document, _whole(path, document), _nri(document), version, options.nri == "required")


def wanted(path: Path, text: str, options: Options, version: Version | None) -> toml_text.Settings:
    """Returns what belongs into a file in which all settings are effective, otherwise as `settings`."""
    return _joined(settings(path, text, options, version), nri_settings(path, text, options, version))


def handler(path: Path, document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the runtime handler of this name that the main file, with these settings, and its imports have; empty if
    there is none."""
    return table(_whole(path, document, ours=True), *_cri(document), "containerd", "runtimes", name)


def has_cdi(document: Mapping[str, Any]) -> bool:
    """Whether the file turns CDI on, which is off by default before 2.0."""
    return table(document, *_cri(document)).get("enable_cdi") is True


def _is_copied(path: Path, text: str, options: Options) -> bool:
    """Whether a text without our blocks contains our handler: another program has rewritten the file, such as
    nvidia-ctk, which drops comments and copies what it finds into a file of its own."""
    document = toml_text.parse(text, str(path))
    handler = table(document, *_cri(document), "containerd", "runtimes", options.runtime_name)
    binary = str(table(handler, "options").get("BinaryName", ""))
    return Path(binary).name == RUNTIME_WRAPPER.name or binary == str(options.runtime_path)


def _without_copies(path: Path, text: str, before: str, options: Options, version: Version | None) -> str:
    """Returns the text without our handler, and with other settings that we may have made restored from the text
    `before`. The runc entry stays: others may have added runtimes meanwhile."""
    document = toml_text.parse(text, str(path))
    before = before if before.strip() else f"version = {_format(document)}\n"
    earlier = toml_text.parse(before, str(path))
    knows_nri = version is None or version >= nri.SINCE
    most = replace(options, set_as_default=True, cdi=True, nri="required" if knows_nri else None)
    handlers = (*_cri(document), "containerd", "runtimes")
    most_of_ours = _joined(settings(path, before, most, version), nri_settings(path, before, most, version))
    keys = {}
    for at, ours in most_of_ours.items():
        if at[: len(handlers)] != handlers:
            for key, value in ours.items():
                then = toml_text.at(earlier, (*at, key))
                if toml_text.at(document, (*at, key)) == value != then:
                    keys[(*at, key)] = then
    fresh = [at for at in most_of_ours if at and toml_text.at(earlier, at) is None]
    gone = [at for at in fresh if toml_text.emptied(document, at, keys)]
    return toml_text.without(text, [(*handlers, options.runtime_name), *gone], keys, str(path))


def _joined(one: toml_text.Settings, other: toml_text.Settings) -> toml_text.Settings:
    return {path: {**one.get(path, {}), **other.get(path, {})} for path in {**one, **other}}


def _edit(
    path: Path, wanted: Callable[[str], toml_text.Settings], kept: str, options: Options, version: Version | None
) -> Edit:
    """Returns an edit of a file that also removes copies of our parts. `kept`: the main file's backup, from before our
    edits."""
    plain = toml_edit(path, wanted)

    def has(text: str) -> bool:
        return plain.has(text) or _is_copied(path, text, options)

    def take(text: str, before: str) -> str:
        rest = plain.take(text, before)
        if _is_copied(path, rest, options):
            rest = _without_copies(path, rest, before or kept, options, version)
        format_of_all = _format(toml_text.parse(text, str(path)))
        # What others wrote into a file that we created relies on its format.
        if rest.strip() and not before and "version" not in toml_text.parse(rest, str(path)) and format_of_all > 1:
            return f"version = {format_of_all}\n{rest}"
        return rest

    return Edit(path, has, plain.put, take)


def facts_of(path: Path, document: Mapping[str, Any], version: Version | None) -> Facts:
    """Returns findings about the containerd whose main file, at the path, is `document`."""
    facts = Facts()
    whole = _whole(path, document, ours=True)
    disabled = whole.get("disabled_plugins", [])
    if "cri" in disabled or _cri(document)[1] in disabled:
        facts.lacks.append("its CRI plugin is off: disabled_plugins; ctr needs no configuration, Kubernetes does")
    if version and version < (1, 7):
        facts.notes.append("containerd before 1.7 ignores CDI requests: ask by annotations")
    else:
        facts.lacks.extend(spec_dirs_lack(table(whole, *_cri(document)).get("cdi_spec_dirs"), "cdi_spec_dirs"))
    here = table(whole, *_cri(document), "containerd")
    usual = table(here, "runtimes", str(here.get("default_runtime_name", "runc")), "options").get("BinaryName")
    if usual and Path(usual).name not in ("runc", RUNTIME_WRAPPER.name):
        facts.notes.append(
            f"the default runtime is {usual}, gpushare-runtime starts runc: /etc/gpushare/runtime.conf says which"
        )
    nri.containerd_facts(whole, _nri(document), version, facts)
    return facts


class Containerd:
    """See Engine in edit.py."""

    name = "containerd"
    executables = ("containerd",)
    reload = Reload(("systemctl", "restart", "containerd"), note="its containers go on running")

    def edits(self, options: Options, version: Version | None) -> list[Edit]:
        main = options.config or _FILE
        path, for_nri = _counts(main, version, _cri), _counts(main, version, _nri)
        kept = files.read(files.backup_of(files.resolve(main))) or ""

        def of(file: Path) -> Callable[[str], toml_text.Settings]:
            def wanted(text: str) -> toml_text.Settings:
                if reason := k0s.refusal(file, text):
                    raise FailedError(reason)
                found = settings(file, text, options, version) if file == path else {}
                return _joined(found, nri_settings(file, text, options, version)) if file == for_nri else found

            return wanted

        text = files.read(main)
        others = [file for file, _ in _imported(main, toml_text.parse(text, str(main)))] if text else []
        every = dict.fromkeys((path, for_nri, main, *others))
        return [_edit(file, of(file), kept, options, version) for file in every]

    def facts(self, options: Options, version: Version | None, text: str) -> Facts:
        path = options.config or _FILE
        document = toml_text.parse(text, str(path))
        facts = facts_of(path, document, version)
        if reason := k0s.refusal(path, text):
            facts.lacks.append(reason)
        return facts
