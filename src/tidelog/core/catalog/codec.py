"""Records and changes as canonical JSON, driven by the types of their fields.

Canonical: keys sorted, no spaces, ASCII, no fractions, every field written. So equal values have equal bytes on every
node and in every version of Python, and two catalogs are compared by comparing bytes.

Strict: a field that is missing or of another type is `CatalogCorrupt`; a field, kind or choice that is not known is
`CatalogVersion`, since newer software wrote it. Nothing is ever skipped or filled in, with one exception: a field that
came after the first catalogs were written (`later_field`) is left out while it has its default, so that records which
do not use it keep their bytes, and bytes from older software can be read. Values are checked later, where a refusal is
the same on every node; here only types count.

K1  decode(encode(x)) == x, and encode(decode(b)) == b for every b that encode ever made.
K2  For any input bytes every error is typed, and the work is bounded by their length.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, Final, NoReturn, Union, get_args, get_origin, get_type_hints

from tidelog.errors import CatalogCorrupt, CatalogVersion

_LATER: Final = "later"
KIND: Final = "kind"
"""The key that names the kind of change."""
TEXT_CHARACTERS_MAX: Final = 1_024
"""Above every limit of the rules, so that those refuse with an explanation; low enough to bound an answer."""
NUMBER_MAX: Final = 2**64 - 1
"""The largest number in the catalog: what seed 001 calls u64."""
ITEMS_MAX: Final = 4_096
"""The longest list in a change or a record."""


class BadValue(ValueError):
    """A value has not the type of its field: the caller's object is wrong, not bytes from outside."""


@dataclass(frozen=True, slots=True)
class Converter:
    """Converts between a value and its JSON form, both ways."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def later_field(default: Any) -> Any:
    """A field of a record that older catalogs do not have; they mean this default."""
    return field(default=default, metadata={_LATER: True})


def dump(plain: Any) -> bytes:
    """The canonical bytes of plain objects."""
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def load(data: bytes) -> Any:
    """Plain objects from bytes; refuses everything that the canonical form never contains (K2)."""
    try:
        return json.loads(data.decode("ascii"), parse_float=_refuse_number, parse_constant=_refuse_number)
    except RecursionError:
        raise CatalogCorrupt(problem="the catalog's JSON is nested too deeply") from None
    except ValueError:  # not ASCII, not JSON, a number of thousands of digits
        raise CatalogCorrupt(problem="these bytes are not the catalog's JSON") from None


def _refuse_number(text: str) -> NoReturn:
    raise CatalogCorrupt(problem=f"{text[:40]} is not a whole number")


def to_plain(value: Any) -> dict[str, Any]:
    """A record as plain objects."""
    plain: dict[str, Any] = dataclass_converter(type(value)).encode(value)
    return plain


def from_plain(record_type: type[Any], plain: Any) -> Any:
    return dataclass_converter(record_type).decode(plain)


# --- one converter per type ------------------------------------------------------------------------


def _encode_switch(value: Any) -> Any:
    if type(value) is not bool:
        raise BadValue(f"a {type(value).__name__} is not true or false")
    return value


def _decode_switch(plain: Any) -> Any:
    if type(plain) is not bool:
        raise CatalogCorrupt(problem=f"a value is {type(plain).__name__} where true or false belongs")
    return plain


def _encode_number(value: Any) -> Any:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise BadValue(f"a {type(value).__name__} is not a whole number from 0 to {NUMBER_MAX}")
    return value


def _decode_number(plain: Any) -> Any:
    if type(plain) is not int or not 0 <= plain <= NUMBER_MAX:
        raise CatalogCorrupt(problem=f"a value is not a whole number from 0 to {NUMBER_MAX}")
    return plain


_NUMBER: Final = Converter(_encode_number, _decode_number)


def _encode_text(value: Any) -> Any:
    if type(value) is not str or len(value) > TEXT_CHARACTERS_MAX:
        raise BadValue(f"a {type(value).__name__} is not text of at most {TEXT_CHARACTERS_MAX} characters")
    return value


def _decode_text(plain: Any) -> Any:
    if type(plain) is not str or len(plain) > TEXT_CHARACTERS_MAX:
        raise CatalogCorrupt(problem=f"a value is not text of at most {TEXT_CHARACTERS_MAX} characters")
    return plain


_TEXT: Final = Converter(_encode_text, _decode_text)
_SWITCH: Final = Converter(_encode_switch, _decode_switch)


def _enum(choices: type[Enum]) -> Converter:
    by_value = {choice.value: choice for choice in choices}

    def encode(value: Any) -> Any:
        if type(value) is not choices:
            raise BadValue(f"a {type(value).__name__} is not a {choices.__name__}")
        return value.value

    def decode(plain: Any) -> Any:
        if type(plain) is not str:
            raise CatalogCorrupt(problem=f"a value is {type(plain).__name__} where a {choices.__name__} belongs")
        if plain not in by_value:
            raise CatalogVersion(problem=f"{plain[:40]!a} is not a known {choices.__name__}")
        return by_value[plain]

    return Converter(encode, decode)


def _optional(inner: Converter) -> Converter:
    return Converter(
        lambda value: None if value is None else inner.encode(value),
        lambda plain: None if plain is None else inner.decode(plain),
    )


def sequence_converter(inner: Converter) -> Converter:
    def encode(value: Any) -> Any:
        if type(value) is not tuple or len(value) > ITEMS_MAX:
            raise BadValue(f"a {type(value).__name__} is not a tuple of at most {ITEMS_MAX}")
        return [inner.encode(item) for item in value]

    def decode(plain: Any) -> Any:
        if type(plain) is not list or len(plain) > ITEMS_MAX:
            raise CatalogCorrupt(problem=f"a value is not a list of at most {ITEMS_MAX}")
        return tuple([inner.decode(item) for item in plain])

    return Converter(encode, decode)


def numbers_converter(count_max: int) -> Converter:
    """For a field that holds many numbers: a limit of its own instead of the general one for lists."""

    def encode(value: Any) -> Any:
        if type(value) is not tuple or len(value) > count_max:
            raise BadValue(f"a {type(value).__name__} is not a tuple of at most {count_max}")
        return [_encode_number(item) for item in value]

    def decode(plain: Any) -> Any:
        if type(plain) is not list or len(plain) > count_max:
            raise CatalogCorrupt(problem=f"a value is not a list of at most {count_max}")
        return tuple([_decode_number(item) for item in plain])

    return Converter(encode, decode)


def _pair(first: Converter, second: Converter) -> Converter:
    def encode(value: Any) -> Any:
        if type(value) is not tuple or len(value) != 2:
            raise BadValue(f"a {type(value).__name__} is not a pair")
        return [first.encode(value[0]), second.encode(value[1])]

    def decode(plain: Any) -> Any:
        if type(plain) is not list or len(plain) != 2:
            raise CatalogCorrupt(problem="a value is not a pair")
        return first.decode(plain[0]), second.decode(plain[1])

    return Converter(encode, decode)


def tagged_converter(kinds: Mapping[str, type[Any]]) -> Converter:
    """One of several dataclasses, told apart by `kind`."""
    names = {record_type: name for name, record_type in kinds.items()}
    converters = {name: dataclass_converter(record_type) for name, record_type in kinds.items()}

    def encode(value: Any) -> Any:
        name = names.get(type(value))
        if name is None:
            raise BadValue(f"{type(value).__name__} is not a change that can stand here")
        return {**converters[name].encode(value), KIND: name}

    def decode(plain: Any) -> Any:
        if type(plain) is not dict or type(plain.get(KIND)) is not str:
            raise CatalogCorrupt(problem="a change has no kind")
        name = plain[KIND]
        if name not in converters:
            raise CatalogVersion(problem=f"{name[:40]!a} is not a known kind of change")
        return converters[name].decode({key: value for key, value in plain.items() if key != KIND})

    return Converter(encode, decode)


_CONVERTERS: Final[dict[type[Any], Converter]] = {}


def dataclass_converter(record_type: type[Any]) -> Converter:
    """The converter of a frozen dataclass, made once from the types of its fields."""
    if record_type not in _CONVERTERS:
        _CONVERTERS[record_type] = _make_dataclass_converter(record_type)
    return _CONVERTERS[record_type]


def _make_dataclass_converter(record_type: type[Any]) -> Converter:
    assert is_dataclass(record_type), record_type
    hints = get_type_hints(record_type)
    # A field may have its own converter, as the changes of a batch do.
    items = [(item.name, item.metadata.get("converter") or _of(hints[item.name])) for item in fields(record_type)]
    known = frozenset(name for name, _ in items)
    later = {item.name: item.default for item in fields(record_type) if item.metadata.get(_LATER)}

    def encode(value: Any) -> Any:
        if type(value) is not record_type:
            raise BadValue(f"a {type(value).__name__} is not a {record_type.__name__}")
        plain = {name: converter.encode(getattr(value, name)) for name, converter in items}
        for name, default in later.items():
            if getattr(value, name) == default:
                del plain[name]
        return plain

    def decode(plain: Any) -> Any:
        if type(plain) is not dict:
            raise CatalogCorrupt(problem=f"a value is {type(plain).__name__} where a {record_type.__name__} belongs")
        if plain.keys() != known and plain.keys() | later.keys() != known:
            _raise_for_keys(record_type, frozenset(plain) | later.keys(), known)
        return record_type(**{name: converter.decode(plain[name]) for name, converter in items if name in plain})

    return Converter(encode, decode)


def _raise_for_keys(record_type: type[Any], found: frozenset[str], known: frozenset[str]) -> NoReturn:
    if unknown := sorted(found - known):
        raise CatalogVersion(problem=f"{record_type.__name__} has a field {unknown[0][:40]!a} that is not known")
    raise CatalogCorrupt(problem=f"{record_type.__name__} lacks its field {sorted(known - found)[0]!r}")


def _of(hint: Any) -> Converter:
    if hint is int:
        return _NUMBER
    if hint is str:
        return _TEXT
    if hint is bool:
        return _SWITCH
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return dataclass_converter(hint)
    arguments = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return _optional(_of(inner))
    assert get_origin(hint) is tuple, hint
    if arguments[1] is Ellipsis:
        return sequence_converter(_of(arguments[0]))
    return _pair(_of(arguments[0]), _of(arguments[1]))
