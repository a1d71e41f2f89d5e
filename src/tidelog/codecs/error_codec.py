"""Typed errors that keep their class and their fields on the way to a client.

A refusal of the link carries code and words, which is enough to decide whether to try again. A client must also act on
what an error says: who leads, which offset was expected. So answers to clients carry errors as JSON with their fields.

EC1  What decodes to a class has exactly the fields of that class, of their types, and its `retriable` and `definite`.
     Everything else becomes `PeerRefused` with the code, the words and the promises of the other side.
EC2  Whatever comes in, nothing but `BadMessage` is raised, and no constructor of ours runs on foreign values.
EC3  Words and fields are bounded; fields that would exceed the bound are left out together.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, get_args, get_origin, get_type_hints

from tidelog import errors
from tidelog.errors import BadMessage, LogError, PeerRefused
from tidelog.units import KIB

WORDS_MAX: Final = 2 * KIB
FIELDS_BYTES_MAX: Final = 16 * KIB
_CODE_MAX: Final = 100


def error_json(error: LogError) -> dict[str, Any]:
    """{code, message, retriable, definite, fields}; only fields that JSON can say."""
    fields = {} if isinstance(error, PeerRefused) else {name: vars(error).get(name) for name in _hints(type(error))}
    if not all(map(_is_plain, fields.values())) or len(json.dumps(fields)) > FIELDS_BYTES_MAX:
        fields = {}
    return {
        "code": error.code,
        "message": str(error)[:WORDS_MAX],
        "retriable": error.retriable,
        "definite": error.definite,
        "fields": fields,
    }


def error_of_json(plain: Any) -> LogError:
    """The error again, as its class where that is known and fits (EC1). Raises `BadMessage` for what is no error."""
    match plain:
        case {
            "code": str(code),
            "message": str(message),
            "retriable": bool(retriable),
            "definite": bool(definite),
            "fields": dict(fields),
            **rest,
        } if not rest and len(code) <= _CODE_MAX:
            error_class = _classes().get(code)
            if error_class is not None and (error_class.retriable, error_class.definite) == (retriable, definite):
                hints = _hints(error_class)
                if fields.keys() == hints.keys() and all(_fits(fields[name], hint) for name, hint in hints.items()):
                    return _made(error_class, message[:WORDS_MAX], fields)
            return PeerRefused(code=code, message=message[:WORDS_MAX], retriable=retriable, definite=definite)
        case _:
            raise BadMessage(problem="an answer holds an error that cannot be read")


def _made(error_class: type[LogError], message: str, fields: dict[str, Any]) -> LogError:
    """As pickling does it: the words are those of the other side, whose version may say them in another way."""
    error = error_class.__new__(error_class)
    error.args = (message,)
    vars(error).update(fields)
    return error


@cache
def _classes() -> dict[str, type[LogError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, LogError)]
    return {error_class.code: error_class for error_class in found if error_class not in (LogError, PeerRefused)}


_known_hints: Final[dict[type[LogError], dict[str, Any]]] = {}


def _hints(error_class: type[LogError]) -> dict[str, Any]:
    """Names and types of the fields of an error class."""
    if error_class not in _known_hints:
        hints = get_type_hints(error_class)
        _known_hints[error_class] = {field.name: hints[field.name] for field in dataclasses.fields(error_class)}
    return _known_hints[error_class]


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(item, str | int) for item in value)
    return value is None or isinstance(value, str | int | float)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Sequence, list):
        (item_hint,) = get_args(hint)
        return type(value) is list and all(type(item) is item_hint for item in value)
    if choices := get_args(hint):
        return any(_fits(value, choice) for choice in choices)
    return type(value) is hint or (hint is float and type(value) is int)
