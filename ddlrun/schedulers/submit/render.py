"""Batch scripts and manifests: render a job from a template."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import fields

import jinja2
import yaml

from ddlrun.errors import InputError
from ddlrun.schedulers.submit import BatchJob, Scheduler

# Field of BatchJob -> option, for values that stand in a directive, where a blank or a quote would begin another word.
PLAIN_OPTIONS = {
    "name": "--job-name", "queue": "--queue", "account": "--account", "log": "--log", "image": "--image",
    "parallel_environment": "--parallel-environment",
}  # fmt: skip
OPTIONS = PLAIN_OPTIONS | {
    "directives": "--scheduler-args", "modules": "--module", "container": "--container-command", "warn": "--warn",
    "requeue": "--requeue", "exclusive": "--exclusive", "memory": "--mem",
}  # fmt: skip
# Field -> the only scheduler that supports it, and the problem with every other.
SINGLE_SCHEDULER = {
    "image": ("kubernetes", "only for Kubernetes; use --container-command 'COMMAND ...'"),
    "parallel_environment": ("sge", "only for Grid Engine; leave the option out"),
}


def check(batch: BatchJob, scheduler: Scheduler) -> None:
    """Raise InputError for all that the scheduler does not support, or that would break the lines of the script."""
    problems = [*_unsupported(batch, scheduler), *_broken_lines(batch), *scheduler.find_problems(batch)]
    if batch.warn is not None and batch.warn >= (batch.seconds or 0):
        limit = f"--time is {batch.seconds} seconds" if batch.seconds else "there is no --time"
        problems.append(f"--warn {batch.warn}: {limit}; give a --time that is longer than --warn")
    if problems:
        raise InputError(*problems)
    for word in (batch.folder, *batch.words, *batch.modules):
        _check_word(word, scheduler)


def _unsupported(batch: BatchJob, scheduler: Scheduler) -> list[str]:
    given = {field.name for field in fields(batch) if getattr(batch, field.name) not in (None, False, ())}
    return [
        *(f"{OPTIONS[field]}: {reason}" for field, reason in scheduler.unsupported.items() if field in given),
        *(
            f"{OPTIONS[field]}: {reason}"
            for field, (only, reason) in SINGLE_SCHEDULER.items()
            if field in given and scheduler.name != only
        ),
    ]


def _broken_lines(batch: BatchJob) -> list[str]:
    values = {option: getattr(batch, field) for field, option in PLAIN_OPTIONS.items()}
    problems = [
        f"{option} {value!r}: blanks, quotes, # and control characters are not allowed; leave them out"
        for option, value in values.items()
        if value is not None and not re.fullmatch(r"[^\s'\"\\`\x00-\x1f\x7f-\x9f#]+", value)
    ]
    if batch.directives and not batch.directives.isprintable():
        problems.append(f"--scheduler-args {batch.directives!r}: write one line without control characters")
    return problems


def _check_word(word: str, scheduler: Scheduler) -> None:
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{word!r} is not UTF-8 text, as batch scripts are; rename it") from error
    if scheduler.forbidden and re.search(scheduler.forbidden, word):
        raise InputError(f"{word!r}: {scheduler.title} would read a directive in it; write it differently")


def quote(words: str | Sequence[str]) -> str:
    r"""Quote a word, or words, for sh, so that no line of them begins with #.

    Schedulers look for their directives in the whole script.

    >>> print(quote(("echo", "a\n#BSUB -q x")))
    echo 'a
    ''#BSUB -q x'
    """
    if isinstance(words, str):
        return shlex.quote(words).replace("\n", "\n''")
    return " ".join(map(quote, words))


def scalar(value: str | Sequence[str]) -> str:
    r"""Render a string, or a list of strings, as YAML on one line.

    >>> scalar("a: 'b'"), scalar(["x", "3"])
    ('"a: \'b\'"', '["x", "3"]')
    """
    text = value if isinstance(value, str) else list(value)
    return str(
        yaml.safe_dump(text, default_flow_style=True, default_style='"', width=float("inf"), allow_unicode=False)
    ).strip()


def render(batch: BatchJob, scheduler: Scheduler, template: str, where: str, version: str) -> str:
    """Render a job's script, or manifest, from the text of a Jinja2 template; `where` names the template in errors.

    Templates have `job` (a BatchJob), `time` and `warn` (in the scheduler's format, empty if not set), `version`, and
    the filters `sh` and `yaml`. Raises InputError for every problem of the job, and for errors in the template.
    """
    check(batch, scheduler)
    environment = jinja2.Environment(  # noqa: S701 - no HTML
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"sh": quote, "yaml": scalar}
    try:
        return environment.from_string(template).render(
            job=batch,
            time=scheduler.format_time(batch.seconds) if batch.seconds else "",
            warn=scheduler.format_time(batch.warn) if batch.warn else "",
            version=version,
        )
    except jinja2.TemplateError as error:
        line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise InputError(f"template {where}{line}: {error.message}") from error
