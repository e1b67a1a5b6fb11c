"""Secrets in variables and arguments: what is replaced where it is shown, and what is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.environment.secrets import REDACTED, SECRET_SHAPES, has_secret, redact, redact_words
from docs.reference.tables import read_table

SECRETS = {
    "names": [
        "HF_TOKEN=abc", "AWS_SECRET_ACCESS_KEY=abc", "AWS_ACCESS_KEY_ID=abc", "MY_PASSWORD=abc",
        "Authorization=Bearer x", "AUTHORIZATION=x", "MY_CREDS=x", "GIT_CREDENTIALS=x", "GH_PAT=x", "JWT=x",
        "SSL_PEM=x", "SENTRY_DSN=x",
        "PGPASSWORD=x", "MYSQL_PWD=x", "DBPASS=x", "SSHPASS=x", "APIKEY=x", "apiKey=x", "hfToken=abc", "SECRETKEY=x",
        "KEY=abc", "AUTH=user:x", "SLACK_WEBHOOK=x", "COOKIE=abc", "SESSION_COOKIES=abc", "STORAGE_CONNECTION_STRING=x",
        "KEY_PASSPHRASE=x", "WANDB_API_KEY=0123456789", "NPM_TOKENS=abc", "PASSWORD=1234", "VAULT_SECRET_ID=x",
        "DB_PW=abc", "LDAP_BIND_PW=abc", "OTP=123456", "GITLAB_GROUP_ACCESS_TOKEN=abc", "PUBLIC_API_KEY=abc",
    ],
    "values": [
        "A=https://TOKEN@host/x", "A=http://user:x@host", "A=postgres://u:p@h/db", "A=redis://:p@h",
        "A=https://hooks.slack.com/services/T0/B0/x", "A=https://discord.com/api/webhooks/1/x",
        "A=https://x.webhook.office.com/webhookb2/x", "A=https://a.blob.core.windows.net/c?sv=2020&sig=abc%3D",
        "A=https://b.s3.amazonaws.com/k?X-Amz-Signature=abc", "A=AKIAABCDEFGHIJKLMNOP",
        "A=DefaultEndpointsProtocol=https;AccountName=a;AccountKey=abc==;EndpointSuffix=core.windows.net",
        "A=host=h user=u password=x", "A=Server=h;User Id=sa;Password=x;", "A=Endpoint=sb://h/;SharedAccessKey=x",
        "A=ghp_abcdefghijklmnopqrstuvwxyz0123456789", "A=glpat-abcdefghijklmnopqrst", "A=hf_abcdefghijklmnopqrstuvwxyz",
        "A=sk-proj-abcdefghijklmnopqrstuvwx", "A=xoxb-1234567890-abc", "A=-----BEGIN RSA PRIVATE KEY-----\nabc",
        "A=-----BEGIN OPENSSH PRIVATE KEY-----\nabc", "A=eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
        'A={"api_key": "abc"}', "A=Authorization: Basic dXNlcjpwYXNzd29yZA==", "A=curl -H 'X-Api-Key: abc'",
        "A=Cookie: sessionid=abc", "A=local-0123456789abcdef0123456789abcdef01234567", "A=python x.py --token abc",
    ],
}  # fmt: skip
ORDINARY = [
    "TOKENIZERS_PARALLELISM=false", "KEYBOARD=us", "MONKEY=x", "PWD=/x", "OLDPWD=/x", "AUTHOR=me", "MAX_TOKENS=4096",
    "TOKENS=300000000", "PASS=2", "PATH=/bin:/usr/bin", "PATTERN=x", "KEYWORDS=a", "COMPASS=n", "BYPASS_CACHE=1",
    "PYTHONPATH=/a:/b", "EOS_TOKEN=</s>", "NUM_KEY_VALUE_HEADS=8", "PUBLIC_KEY=ssh-rsa AAA", "SSL_CERT_FILE=/etc/x",
    "API_KEY_FILE=/x/y", "SECRET_NAME=mine", "PASSAGE=x", "TURKEY=x", "SECRETARY=x", "FORWARD_PASS=x", "USE_AUTH=yes",
    "LS_COLORS=rs=0:di=01;34:*.pem=00;31:*.key=01;2", "XLA_FLAGS=--xla_gpu_x=true", "MASTER_ADDR=h", "OMP_PLACES={0:4}",
    "GIT=ssh://git@github.com/x", "GIT=git@github.com:x/y", "URL=https://host/x?v=1", "S3=s3://bucket/key", "A_KEY=",
    "IMAGE=docker://user/image:tag@sha256:abc", "EMAIL=a@b.c", "GIT_SHA=0123456789abcdef0123456789abcdef01234567",
    "TRAIN_TOKENS=300B", "TOKENS=1_000_000", "TOKEN_BUDGET_TOKENS=2.5e9", "IMAGE_TOKEN=<image>", "PW_CONV=1",
    "TOKEN_FILE=data/tokens.bin", "SPECIAL_TOKENS=a,b", "JWT_ALGORITHM=RS256", "HF_HUB_DISABLE_IMPLICIT_TOKEN=1",
    "SSH_AUTH_SOCK=/tmp/x", "LR=1e-3",
]  # fmt: skip
LINES = [
    ("train.py --token abc --lr 0.1", "train.py --token <redacted> --lr 0.1"),
    ("train.py --wandb-key=abc", "train.py --wandb-key=<redacted>"),
    ("train.py model.api_key=abc +seed=1", "train.py model.api_key=<redacted> +seed=1"),
    ("train.py https://T@h", "train.py <redacted>"),
    ("train.py --data=https://u:p@h/x", "train.py --data=<redacted>"),
    ("train.py --header Authorization:Bearer", "train.py --header <redacted>"),
    *((line, line) for line in (
        "train.py --tokenizer gpt2", "train.py --max-tokens 512", "train.py --key loss", "train.py --eos-token </s>",
        "train.py --tokens 10B", "train.py --im-token <im>", "train.py --text-key content",
        "train.py --sort-key x", "train.py --use-auth-token data", "train.py --password --lr", "a key=val --auth=basic",
    )),
]  # fmt: skip


@pytest.mark.parametrize("text", [text for group in SECRETS.values() for text in group])
def test_secrets_are_not_shown(text: str) -> None:
    name, _, value = text.partition("=")
    assert redact({name: value}) == {name: REDACTED}


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_variables_are_shown(text: str) -> None:
    name, _, value = text.partition("=")
    assert redact({name: value}) == {name: value}


@pytest.mark.parametrize(("line", "shown"), LINES)
def test_secret_arguments_are_not_shown(line: str, shown: str) -> None:
    assert " ".join(redact_words(line.split())) == shown


def test_code_among_the_arguments_is_shown_unless_it_has_a_secret() -> None:
    code = "import os; token = os.environ['HF_TOKEN']; key = f(token)"
    words = ("python", "-c", code, "bash", "-c", "export HF_TOKEN=abc; python x.py")
    assert redact_words(words) == (*words[:-1], REDACTED)


@given(st.lists(st.text(max_size=30), max_size=6))
def test_words_are_replaced_or_stay(words: list[str]) -> None:
    shown = redact_words(words)
    assert len(shown) == len(words)
    assert redact_words(shown) == shown
    assert not any(map(has_secret, shown))


def test_the_page_lists_the_values() -> None:
    rows = read_table("reference/environment-variables.md", "What counts as a secret")
    assert [row[0] for row in rows] == [shape.what for shape in SECRET_SHAPES]
