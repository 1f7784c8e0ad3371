"""Fields of protobuf messages by their numbers, for what plays the other side of an adapter."""

from gpushare.adapters.protobuf import Message, every, number, parse, raw

__all__ = ["every", "mapping", "number", "parse", "raw", "text", "texts"]


def text(message: Message, of: int) -> str:
    """A string field."""
    return raw(message, of).decode()


def texts(message: Message, of: int) -> list[str]:
    """A repeated string field."""
    return [value.decode() for value in every(message, of)]


def mapping(message: Message, of: int) -> dict[str, str]:
    """A map field of strings."""
    pairs = [parse(entry) for entry in every(message, of)]
    return {text(pair, 1): text(pair, 2) for pair in pairs}
