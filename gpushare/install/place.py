"""Plans and carries out the steps that install the items, or remove them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpushare import __version__
from gpushare.engines import files
from gpushare.errors import FailedError
from gpushare.install import root as roots
from gpushare.install.items import Item
from gpushare.install.manifest import NAME, Manifest, digest, found
from gpushare.install.root import Root

What = Literal["put", "replace", "same", "remove", "gone", "left", "foreign"]
CHANGES: tuple[What, ...] = ("put", "replace", "remove")


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to one path of the root. `item`: what is put there; None for a removal. `why`: why something is left
    or foreign, for the administrator. `foreign`: something that is not ours is in the way."""

    path: Path
    what: What
    item: Item | None = None
    why: str = ""


def plan(root: Root, items: Sequence[Item], manifest: Manifest) -> list[Step]:
    """Returns the steps of an installation. Raises FailedError."""
    steps = [_step(root, item, manifest) for item in items]
    known = {str(item.path) for item in items}
    for name in manifest.files:
        if name not in known:  # an earlier version put it there
            steps.append(_going(root, name, manifest.files[name]))
    return steps


def _step(root: Root, item: Item, manifest: Manifest) -> Step:
    path, ours = root.at(item.path), manifest.files.get(str(item.path))
    there = found(path)
    if there == digest(item.content, is_link=item.is_link):
        return Step(item.path, "same", item)
    if there is None:
        if item.kind == "enable" and ours and manifest.complete:
            return Step(item.path, "left", item, "it was disabled: `systemctl enable gpushare` undoes that")
        return Step(item.path, "put", item)
    if item.kind == "config":
        return Step(item.path, "left", item, "yours, and never overwritten")
    if ours and there in ours:
        return Step(item.path, "replace", item)
    if ours:
        return Step(item.path, "left", item, "changed since it was installed; remove it to get this version's")
    if item.kind == "link":
        same = path.exists() and path.samefile(item.content) if Path(item.content).exists() else False
        return Step(item.path, "left", item, "" if same else "another one is there, which is not of this installation")
    return Step(item.path, "foreign", item, "it is there, and `gpushare install` has not put it there")


def _going(root: Root, name: str, ours: list[str]) -> Step:
    path = Path(name)
    there = found(root.at(path))
    if there is None:
        return Step(path, "gone")
    if there in ours:
        return Step(path, "remove")
    return Step(path, "left", None, "changed since it was installed: it is yours now")


def check(root: Root, steps: Sequence[Step]) -> None:
    """Raises FailedError if the steps cannot all be carried out; then none must be."""
    for step in steps:
        if step.what == "foreign":
            raise FailedError(f"{root.at(step.path)}: {step.why}; nothing is changed: move it away and try again")
    needed = [step.path for step in steps if step.what in CHANGES and not _is_dispensable(step)]
    for path in [root.at(NAME), *map(root.at, needed)]:
        if not roots.is_writable(path):
            raise FailedError(f"{path} cannot be written (a read-only file system, or not root); nothing is changed")


def _is_dispensable(step: Step) -> bool:
    return step.item is not None and step.item.kind == "link"


def put(root: Root, steps: Sequence[Step], manifest: Manifest) -> Iterator[Step]:
    """Carries out one step per iteration and yields it as it turned out; updates the manifest. The caller saves the
    manifest as complete when everything else is done. Raises FailedError."""
    _intend(root, steps, manifest)
    for step in steps:
        path, turned_out = root.at(step.path), step
        if step.what in ("put", "replace"):
            assert step.item is not None
            roots.remove_unfinished(path.parent)
            turned_out = _put(path, step)
        elif step.what == "remove":
            files.delete(path)
        if turned_out.what in ("put", "replace", "same"):
            assert step.item is not None
            manifest.files[str(step.path)] = [digest(step.item.content, is_link=step.item.is_link)]
        elif turned_out.what in ("remove", "gone") or step.item is None or _is_dispensable(step):
            manifest.files.pop(str(step.path), None)
        yield turned_out


def _put(path: Path, step: Step) -> Step:
    assert step.item is not None
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if step.item.is_link:
            roots.link(path, step.item.content)
        else:
            files.write(path, step.item.content)
    except OSError as error:
        if not _is_dispensable(step):
            raise FailedError(f"{path} cannot be made: {error.strerror}; run it again when that is mended") from None
        return Step(step.path, "left", step.item, f"it cannot be made: {error.strerror}")
    return step


def _intend(root: Root, steps: Sequence[Step], manifest: Manifest) -> None:
    """Saves a manifest with the digests that files will have, before any file changes."""
    places = [NAME]
    for step in steps:
        if step.what in ("put", "replace", "same") and step.item is not None:
            wanted = digest(step.item.content, is_link=step.item.is_link)
            before = manifest.files.get(str(step.path), [])
            manifest.files[str(step.path)] = [*before, *({wanted} - {*before})]
            places.append(step.path)
    for directory in {parent for path in places for parent in path.parents} - {Path("/")}:
        if not root.at(directory / "x").parent.exists() and str(directory) not in manifest.directories:
            manifest.directories.append(str(directory))
    manifest.complete = False
    manifest.version = __version__
    manifest.save(root)


def removal(root: Root, manifest: Manifest) -> list[Step]:
    """Returns the steps of a removal."""
    return [_going(root, name, ours) for name, ours in reversed(manifest.files.items())]


def take(root: Root, steps: Sequence[Step], manifest: Manifest) -> Iterator[Step]:
    """Carries out a removal. The manifest is removed last, then the directories that were made and are empty."""
    for step in steps:
        path = root.at(step.path)
        if path.parent.is_dir():
            roots.remove_unfinished(path.parent)
        if step.what == "remove":
            files.delete(path)
        yield step
    files.delete(root.at(NAME))
    for name in sorted(manifest.directories, key=len, reverse=True):
        directory = root.at(Path(name) / "x").parent
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
