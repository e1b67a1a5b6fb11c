"""Secrets in variables and arguments: recognize them by names and by values, and replace them."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

REDACTED = "<redacted>"


class SecretShape(NamedTuple):
    """A value that is secret whatever its name is."""

    what: str
    pattern: str


# docs/reference/environment-variables.md shows these words and the table of values. Names consist of words (HF_TOKEN,
# apiKey), or end in a word (DBPASSWORD).
SECRET_WORDS = frozenset(
    "authorization bearer connstr cred credential credentials creds dsn passcode passphrase passwd password passwords "
    "pat pem psk pwd secret secrets totp webhook webhooks".split()
)
# Names with these words are not secret if the value is a number or a switch, or if they contain one of ORDINARY_WORDS.
WEAK_WORDS = frozenset("auth authentication cookie cookies jwt key keys oauth otp pass pw token tokens".split())
ORDINARY_WORDS = frozenset(
    "algorithm audio backward bos cache caption cls column count dict dim disable enable eos feature foreign forward "
    "group index len length level limit loss mask max merge method metric min mixer monitor no norm num pad partition "
    "path primary public require sep size sort special split stop text type unk use video vocab with".split()
)
# A single one of these words, as the name of an argument, is not secret.
VAGUE_WORDS = frozenset("auth authentication cookie cookies key keys oauth pass".split())
# A name that ends in one of these words refers to the location of a secret.
PLACES = frozenset(("dir", "file", "path", "sock"))
ORDINARY_NAMES = frozenset(("PWD", "OLDPWD"))
SECRET_SHAPES = (
    SecretShape("a URL with a password", r"://[^/\s:@]*:[^/\s@]+@"),
    SecretShape("an HTTP URL with a user name, which may be a token", r"(?i:\bhttps?://)[^/\s@?#]+@"),
    SecretShape("a signed URL", r"(?i:[?&;](?:x-amz-)?(?:sig|signature|credential)=)"),
    SecretShape(
        "the URL of a webhook", r"(?i:https://(?:hooks\.|api\.telegram\.org/bot|[^\s?#]*(?:webhook|\.logic\.azure)))"
    ),
    SecretShape("HTTP credentials", r"(?i:\bbearer\s+\S|\bcookie:\s*\S+=|\bbasic\s+[a-z0-9+/]{8,}=*(?:$|[\s'\"]))"),
    SecretShape("a private key", r"-----BEGIN [A-Z ]*PRIVATE KEY|AGE-SECRET-KEY-1"),
    SecretShape("a JSON Web Token", r"\beyJ[\w-]{8,}\.[\w-]+|\beyJhcGlf"),
    SecretShape("a key of AWS", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    SecretShape("a token of GitHub or GitLab", r"\b(?:gh[opsur]_|github_pat_|glpat-)[\w-]{16}"),
    SecretShape("a token of Hugging Face", r"\b(?:hf|api_org)_[A-Za-z0-9]{16}"),
    SecretShape("a key of a self-hosted Weights & Biases server", r"\blocal-[0-9a-f]{40}\b"),
    SecretShape("a token of Slack", r"\bxox[a-z]-[\w-]{10}"),
    SecretShape("a key of Google", r"\bAIza[\w-]{30}|\bya29\.[\w-]{10}|\bGOCSPX-[\w-]{10}"),
    SecretShape(
        "a key with another known prefix",
        r"\b(?:sk-|[rs]k_(?:live|test)_|npm_|pypi-|dckr_pat_|dop_v1_|dapi|hvs\.|SG\.|gsk_|r8_|lin_api_)[\w-]{20}",
    ),
)
_COMPOUND = (
    r"(?:password|passwd|passphrase|secret|token|credential|webhook|pwd|connectionstring|"
    r"(?:access|account|api|app|auth|db|deploy|encryption|license|master|private|root|secret|shared|signing|ssh|storage|"
    r"user)(?:key|pass))s?$"
)
# A name with one of these is secret even if it contains one of ORDINARY_WORDS, as GROUP_ACCESS_TOKEN does.
_ACCESS = r"\b(?:access|api)-(?:key|token)s?\b"
_AMOUNT = r"(?i)[\d_.]+(?:e\d+|[kmgbt])?"
_HARMLESS = r"(?i)true|false|yes|no|on|off|none|null|auto|<[^<>]*>|\d{1,5}(?:\.\d+)?(?:[\s,]\d{1,5}(?:\.\d+)?)*"
# NAME=VALUE and NAME: VALUE within a text, but no expressions of a program.
_ASSIGNED = r"(?<![\w.*])([A-Za-z][\w.-]*)[\"']?\s*[=:]\s*[\"']?([^\s\"';&,()\[\]{}]+)(?=$|[\s\"';&,}])"
_OPTION = r"(?<!\S)--?([A-Za-z][\w-]*)\s+([^\s-]\S*)"


def redact(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with REDACTED in place of the values of secrets."""
    return {
        name: REDACTED if is_secret_name(name, value) or has_secret(value) else value
        for name, value in variables.items()
    }


def redact_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a program with REDACTED in place of secrets.

    >>> redact_words(["train.py", "--token", "abc", "--api-key=abc", "--max-tokens", "512", "https://abc@host/x"])
    ('train.py', '--token', '<redacted>', '--api-key=<redacted>', '--max-tokens', '512', '<redacted>')
    """
    return tuple(_redact_word(before, word) for before, word in zip(("", *words), words, strict=False))


def _redact_word(before: str, word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and re.fullmatch(r"[\w.+-]+", name) and (is_secret_name(name, value, alone=False) or has_secret(value)):
        return f"{name}={REDACTED}"
    is_value = before.startswith("-") and "=" not in before and not word.startswith("-")
    return REDACTED if has_secret(word) or (is_value and is_secret_name(before, word, alone=False)) else word


def has_secret(text: str) -> bool:
    """Return True for a text that contains a secret: one of a known shape, or NAME=VALUE with a secret name."""
    if any(re.search(shape.pattern, text) for shape in SECRET_SHAPES):
        return True
    pairs = (match.groups() for pattern in (_ASSIGNED, _OPTION) for match in re.finditer(pattern, text))
    return any(is_secret_name(name, value, alone=False) for name, value in pairs)


def is_secret_name(name: str, value: str, *, alone: bool = True) -> bool:
    """Return True for the name of a secret.

    Args:
        name: The name of a variable, of an option, or of a part of a text.
        value: Its value; an empty one is not secret.
        alone: Whether it is a variable.
    """
    words = _split(name)
    marks = {word for word in words if word in SECRET_WORDS | WEAK_WORDS or re.search(_COMPOUND, word)}
    if words[-2:] == ["connection", "string"]:
        marks.add("connectionstring")
    if not value or not marks or name in ORDINARY_NAMES or words[-1] == "name":
        return False
    if words[-1] in PLACES and re.match(r"[/~.$]|[\w/-]+\.\w{1,5}$", value):
        return False
    if not marks <= WEAK_WORDS:
        return True
    is_ordinary = ORDINARY_WORDS.intersection(words) and not re.search(_ACCESS, "-".join(words))
    if is_ordinary or re.fullmatch(_HARMLESS, value):
        return False
    if "tokens" in words and re.fullmatch(_AMOUNT, value):
        return False
    return alone or len(words) > 1 or not marks <= VAGUE_WORDS


def _split(name: str) -> list[str]:
    """Return the words of a name in lower case.

    >>> _split("HF_TOKEN"), _split("apiKey"), _split("--api-key")
    (['hf', 'token'], ['api', 'key'], ['api', 'key'])
    """
    parts = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])|[A-Z]", name)
    return [part.lower() for part in parts]
