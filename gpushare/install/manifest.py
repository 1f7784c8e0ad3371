"""The record of what has been installed: for each file the digests that it may have, which distinguish our content
from an administrator's changes.

It is written before the files that it lists. A run that is killed leaves it without `complete`, with the digests from
before and after; the next run continues from there.
"""

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct

from gpushare.engines import files
from gpushare.errors import FailedError
from gpushare.install.items import STATE
from gpushare.install.root import Root, remove_unfinished

NAME = STATE / "installed.json"


class Manifest(Struct, kw_only=True):
    """`files`: digests by path; for a symlink, `link:` and the digest of its target. `directories`: made for the files.
    `group`: whether the group was made."""

    version: str = ""
    complete: bool = False
    group: bool = False
    files: dict[str, list[str]] = {}
    directories: list[str] = []

    @classmethod
    def load(cls, root: Root) -> Self | None:
        """Reads the manifest; None if nothing was installed. Raises FailedError."""
        path = root.at(NAME)
        text = files.read(path) if not path.is_symlink() else "a symlink"
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise FailedError(
                f"{path} is damaged ({error}): remove it; `gpushare install` then knows its own files by their content"
            ) from None

    def save(self, root: Root) -> None:
        """Writes the manifest. Raises FailedError."""
        text = json.dumps(msgspec.to_builtins(self), indent=2) + "\n"
        path = root.at(NAME)
        remove_unfinished(path.parent)
        files.write(path, text)


def digest(content: str, *, is_link: bool) -> str:
    """Returns the digest of an item's content."""
    return ("link:" if is_link else "") + hashlib.sha256(os.fsencode(content)).hexdigest()


def found(path: Path) -> str | None:
    """Returns the digest of what is at the path; None if nothing is. Raises FailedError."""
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return digest(str(path.readlink()), is_link=True)
        if not stat.S_ISREG(mode):
            return "other"
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FailedError(f"{path} cannot be read: {error.strerror}") from None
