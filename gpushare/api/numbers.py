"""Wire types of numbers that people write: amounts of memory and of time, as integers and as text."""

from typing import Annotated

from msgspec import Meta

from gpushare.text.units import TEXT_MAX

# The OpenAPI document states for each field what the daemon's own checks accept; these give better error messages.
# Patterns are those of gpushare/text/units.py, ranges those of gpushare/daemon/{placement,tenants,gangs}.py.
_WHOLE = r"[0-9]*[1-9][0-9]*"
SIZE = rf"({_WHOLE}(\.[0-9]+)?|0+\.{_WHOLE}) ?[KMGTkmgt](i|I)?(B|b)?|0*[1-9][0-9]{{6,}}|{_WHOLE}(\.0+)? ?(B|b)"
_PERCENT = rf"(0*100(\.0+)?|0*[1-9][0-9]?(\.[0-9]+)?|0+\.{_WHOLE}) ?%"
SIZE_MAX = 16 << 40


def number_text(pattern: str) -> Meta:
    """Schema of a number that people write."""
    return Meta(extra_json_schema={"pattern": pattern, "maxLength": TEXT_MAX})


MemorySize = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": SIZE_MAX})]
MemoryText = Annotated[str, number_text(rf"^\s*({SIZE}|{_PERCENT})\s*$")]
SizeText = Annotated[str, number_text(rf"^\s*({SIZE})\s*$")]
TimeMilli = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 1000})]
TimeText = Annotated[
    str,
    number_text(rf"^\s*({_PERCENT}|0+(\.0+)? ?%|0+\.[0-9]+|0*1\.0+|0+|0*([0-9]{{1,3}}|1000) ?m)\s*$"),
]
TimeLimitMilli = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": 1000})]
TimeLimitText = Annotated[
    str,
    number_text(rf"^\s*({_PERCENT}|0+\.{_WHOLE}|0*1\.0+|0*([1-9][0-9]{{0,2}}|1000) ?m)\s*$"),
]
