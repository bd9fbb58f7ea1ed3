"""What looks like a secret, and how it may be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["MASK", "looks_secret", "mask_text", "mask_value", "mask_word", "masked"]

MASK = "***"
_SECRET_WORD = re.compile(
    # By the words of the name between underscores, so that TOKENIZERS_PARALLELISM is none; over-caution costs one line in env.forward.
    r"(^|_)(\w*(SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY)\w*|[A-Z0-9]*TOKENS?|(?!MONKEY_)[A-Z0-9]*KEYS?|PASS|PWD|AUTH|JWT|COOKIES?|PRIVATE)(_|$)",
    re.IGNORECASE,
)
_HARMLESS_NAME = frozenset({"PWD", "OLDPWD"})
_HARMLESS_VALUE = re.compile(r"|0|1|true|false|yes|no|on|off|none", re.IGNORECASE)
_COUNT_OF_TOKENS = re.compile(r"\w*TOKENS(_\w*)?", re.IGNORECASE)
# What stands before the host of a URL: user:password, up to the last @ before a slash; user:password with a slash, where there is no such
# @, unless it is host:port/path@version; or a long token. A user without a password (git@host) is no secret.
_URL_LOGIN = re.compile(
    r"(?<=://)([^\s/?#'\":]*:[^\s/?#'\"]*"
    r"|[^\s/?#'\":\[]*:(?!\d*[/?#])[^\s'\"@]{0,500}(?:@[^\s/?#'\"@]*)*"
    r"|[^\s/?#'\":@]{16,})(?=@)"
)
_URL_FIELD = re.compile(r"(?<=[?&;#])([\w.-]+)=([^\s&;#'\"]+)")
_SIGNATURE = re.compile(r"(.*[_-])?sig(nature)?", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|xox[abprs]-[\w-]{10,}|AKIA[A-Z0-9]{16}"
    r"|nvapi-[\w-]{16,}|pypi-[\w-]{16,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*"
)
# A pair in a group of keys, or a word in a list of words
_PAIR = re.compile(r"""([A-Za-z_][\w.-]*)(['"]?\s*[:=]\s*)("[^"]*"|'[^']*'|[^\s,{}\[\]"']+)""")


def looks_secret(name: str, value: str = "") -> bool:
    """Whether a variable looks like a secret, by the words of its name or by its value.

    A secret value holds a login or a token in a URL, or a well-known kind of token. Without a value the name alone decides.
    """
    return (bool(value) and mask_text(value) != value) or _is_secret_name(name, value)


def _is_secret_name(name: str, value: str) -> bool:
    if name in _HARMLESS_NAME or not _SECRET_WORD.search(name):
        return False
    if _COUNT_OF_TOKENS.fullmatch(name) and value.isdecimal():
        return False
    return not value or not _HARMLESS_VALUE.fullmatch(value)


def mask_value(name: str, value: str) -> str:
    """The value as it may be shown: ``***`` for a secret, a URL without its login, anything else as it is."""
    shown = mask_text(value)
    return MASK if shown == value and looks_secret(name, value) else shown


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """All values as they may be shown in a log, a report or an error, sorted by name."""
    return {name: mask_value(name, env[name]) for name in sorted(env)}


def mask_text(text: str, *, env: Mapping[str, str] | None = None) -> str:
    """A text of any origin (a tool's output, an error) as it may be shown.

    Masked are logins and tokens in URLs, well-known kinds of tokens, and the secret values of ``env``.
    """
    secrets = [value for name, value in (env or {}).items() if len(value) >= 4 and looks_secret(name, value)]
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, MASK)
    return _SECRET_VALUE.sub(MASK, _URL_FIELD.sub(_mask_field, _URL_LOGIN.sub(MASK, text)))


def _mask_field(field: re.Match[str]) -> str:
    """A field of a URL's query (``token=...``) as it may be shown."""
    name, value = field.groups()
    is_secret = _SIGNATURE.fullmatch(name) or _is_secret_name(re.sub("[.-]", "_", name), value)
    return f"{name}={MASK}" if is_secret else field[0]


def mask_word(word: str) -> str:
    """A word of a command line as it may be shown: ``env.set.NAME=value``, also ``env.set={NAME: value}`` and words within a list."""
    key, equals, value = word.partition("=")
    if equals and _is_secret_name(key.rpartition(".")[2], value):
        return f"{key}={MASK}"
    return mask_text(f"{key}={_PAIR.sub(_mask_pair, value)}" if equals else word)


def _mask_pair(pair: re.Match[str]) -> str:
    name, between, value = pair.groups()
    is_secret = _is_secret_name(name.rpartition(".")[2], value.strip("'\""))
    return f"{name}{between}{MASK}" if is_secret else pair[0]
