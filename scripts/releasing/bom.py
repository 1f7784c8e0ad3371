"""Bills of materials (CycloneDX 1.6): what a wheel needs and a package ships, with versions, licences and digests. They
depend on no clock or random number: the same parts give the same text."""

import hashlib
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from releasing.common import Arch, epoch, project, run
from releasing.libraries import Library

# What the linker puts into the static programs of hooks/: archive, name, licence.
STATIC = (
    ("libc.a", "glibc", "LGPL-2.1-or-later"),
    ("libgcc.a", "libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1"),
)
# SPDX's names of licences that libraries name differently.
SPDX = {
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}


def digest(data: bytes) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(data).hexdigest())]


def licence(library: Library) -> str:
    license = (library.metadata.get("License-Expression") or library.metadata.get("License") or "").strip()
    if license and "\n" not in license:
        return SPDX.get(license, license)
    trove = [line for line in library.metadata.get_all("Classifier") or [] if line.startswith("License :: ")]
    names = sorted({line.rpartition(" :: ")[2] for line in trove})
    return " AND ".join(SPDX.get(name, name) for name in names)


def library_component(library: Library) -> Component:
    """A library as a component. Its digests are those of its wheels: the Debian package ships all of them, an
    installation uses one."""
    return Component(
        type=ComponentType.LIBRARY,
        name=library.name,
        version=library.version,
        bom_ref=f"pypi:{library.name}",
        purl=PackageURL("pypi", name=library.name, version=library.version),
        scope=ComponentScope.REQUIRED,
        licenses=[LicenseFactory().make_from_string(licence(library))],
        external_references=[
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION, url=XsUri(path.name), hashes=digest(path.read_bytes())
            )
            for path in library.wheels
        ],
    )


def static_components(arch: Arch) -> list[Component]:
    """libc and libgcc as linked into the static programs, with the Debian package that each came from."""
    found = []
    for archive, name, terms in STATIC:
        path = Path(run(f"{arch.tools}gcc", f"-print-file-name={archive}").strip()).resolve()
        package, _, version = installed_by(path).partition(" ")
        machine = "all" if package.endswith("-cross") else arch.debian
        found.append(
            Component(
                type=ComponentType.LIBRARY,
                name=name,
                version=version or None,
                bom_ref=f"static:{name}",
                purl=PackageURL("deb", "debian", package, version, {"arch": machine}) if package else None,
                hashes=digest(path.read_bytes()),
                description="linked into gpushare-hook and gpushare-runtime",
                licenses=[LicenseFactory().make_from_string(terms)],
            )
        )
    return found


def installed_by(path: Path) -> str:
    """Name and version of the Debian package that a file is from; empty if there is none."""
    if shutil.which("dpkg-query") is None:
        return ""
    found = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True, check=False)
    if found.returncode:
        return ""
    package = found.stdout.partition(": ")[0]
    return run("dpkg-query", "--show", "--showformat=${Package} ${Version}", package)


def file_components(files: Mapping[str, bytes]) -> list[Component]:
    return [
        Component(type=ComponentType.FILE, name=name, bom_ref=f"file:{name}", hashes=digest(data))
        for name, data in sorted(files.items())
    ]


def _of(subject: Component, files: Mapping[str, bytes], libraries: Iterable[Library], arch: Arch) -> str:
    bill = Bom()
    bill.metadata.timestamp = datetime.fromtimestamp(epoch(), UTC)
    bill.metadata.component = subject
    bill.metadata.tools.components.add(this_component())
    needed = {library.name: library_component(library) for library in libraries}
    parts = [*file_components(files), *static_components(arch)]
    bill.components.update([*needed.values(), *parts])
    bill.register_dependency(subject, [*needed.values(), *parts])
    for library in libraries:
        bill.register_dependency(needed[library.name], [needed[name] for name in library.needs])
    # The serial number is derived from the text, which first has a zero in its place.
    bill.serial_number = uuid.UUID(int=0)
    text = JsonV1Dot6(bill).output_as_string()
    bill.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, text)
    return JsonV1Dot6(bill).output_as_string(indent=2) + "\n"


def of_wheel(version: str, tag: str, files: Mapping[str, bytes], libraries: list[Library], arch: Arch) -> str:
    """The bill of a wheel. `files`: its compiled parts."""
    subject = Component(
        type=ComponentType.APPLICATION,
        name=project()["name"],
        version=version,
        bom_ref=project()["name"],
        purl=PackageURL("pypi", name=project()["name"], version=version, qualifiers={"tag": tag}),
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    return _of(subject, files, libraries, arch)


def of_package(version: str, files: Mapping[str, bytes], libraries: list[Library], arch: Arch) -> str:
    """The bill of the Debian package. `files`: its compiled parts, with those of the libraries, after `strip`."""
    subject = Component(
        type=ComponentType.APPLICATION,
        name="gpushare",
        version=version,
        bom_ref="gpushare",
        purl=PackageURL("deb", name="gpushare", version=version, qualifiers={"arch": arch.debian}),
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    return _of(subject, files, libraries, arch)
