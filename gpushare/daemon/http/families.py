"""Metrics in the text format of Prometheus."""

from collections.abc import Iterable

Sample = tuple[dict[str, str], float]


def escape(value: str) -> str:
    """A label's value as the format has it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def family(name: str, kind: str, text: str, samples: Iterable[Sample]) -> list[str]:
    """The lines of a metric: its help, its kind and its samples."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{escape(label)}"' for key, label in labels.items())
        number = repr(value) if isinstance(value, float) else str(value)
        lines.append(f"{name}{{{inside}}} {number}" if inside else f"{name} {number}")
    return lines
