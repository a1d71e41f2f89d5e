"""Operator, account and user of a NATS server that trusts signed tokens (JWT): what its `nsc` tool would make."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import nkeys


def trust(folder: Path, *, user: str) -> tuple[str, Path]:
    """Lines for a server's configuration, and the credentials file of one user that it will let in."""
    operator, account, person = (_pair(prefix) for prefix in (_OPERATOR, _ACCOUNT, _USER))
    operator_token = _token(operator, operator, "operator", "operator", {})
    account_token = _token(operator, account, "account", "account", {"limits": _NO_LIMITS})
    user_token = _token(account, person, user, "user", {"subs": -1, "data": -1, "payload": -1})
    file = folder / f"{user}.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{person.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    name = account.public_key.decode()
    return f"operator: {operator_token}\nresolver: MEMORY\nresolver_preload: {{ {name}: {account_token} }}\n", file


_OPERATOR, _ACCOUNT, _USER = (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)
_LIMITS = ["subs", "data", "payload", "imports", "exports", "conn", "leaf"]
_NO_LIMITS: dict[str, Any] = dict.fromkeys(_LIMITS, -1) | {"wildcards": True}


def _pair(prefix: int) -> Any:
    seed = nkeys.encode_seed(os.urandom(32), prefix)
    return nkeys.from_seed(bytearray(seed))


def _token(issuer: Any, subject: Any, name: str, kind: str, more: dict[str, Any]) -> str:
    claims = {
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": name,
        "iat": 1_700_000_000,
        "nats": {"type": kind, "version": 2, **more},
    }
    claims["jti"] = base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).decode().rstrip("=")
    parts = [_base64(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)]
    signed = ".".join(parts)
    return f"{signed}.{_base64(issuer.sign(signed.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
