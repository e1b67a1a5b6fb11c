"""Batch -> the text that a scheduler takes."""

import re
import shlex
from collections.abc import Sequence

from ddlrun.errors import InputError
from ddlrun.schedulers.submit import BatchJob, Scheduler

# Field of Batch -> option; what goes into a directive's line, where a blank or a quote would begin something else.
PLAIN = {
    "name": "--job-name", "queue": "--queue", "account": "--account", "log": "--log", "image": "--image",
    "parallel_environment": "--parallel-environment",
}  # fmt: skip
OPTIONS = PLAIN | {
    "directives": "--scheduler-args", "modules": "--module", "container": "--container", "warn": "--warn",
    "requeue": "--requeue", "exclusive": "--exclusive", "memory": "--mem",
}  # fmt: skip


# Field -> the only scheduler that has it, and what to do with another.
ONLY = {
    "image": ("kubernetes", "for Kubernetes alone; give --container 'COMMAND ...'"),
    "parallel_environment": ("sge", "for Grid Engine alone; leave it out"),
}


def check(batch: BatchJob, scheduler: Scheduler) -> None:
    """Raise InputError for all that the scheduler cannot do, or that would break out of its line."""
    given = {field for field, value in batch._asdict().items() if value not in (None, False, ())}
    problems = [f"{OPTIONS[field]}: {why}" for field, why in scheduler.refuses.items() if field in given]
    problems += [
        f"{OPTIONS[field]}: {why}" for field, (name, why) in ONLY.items() if field in given and scheduler.name != name
    ]
    problems += [*_broken_lines(batch), *scheduler.problems(batch)]
    if batch.warn is not None and batch.warn >= (batch.seconds or 0):
        said = f"--time is {batch.seconds} seconds" if batch.seconds else "there is no --time"
        problems.append(f"--warn {batch.warn}: {said}; give a longer --time, which the signal comes before")
    if problems:
        raise InputError(*problems)
    for word in (batch.folder, *batch.words, *batch.modules):
        _check_word(word, scheduler)


def _broken_lines(batch: BatchJob) -> list[str]:
    values = {option: getattr(batch, field) for field, option in PLAIN.items()}
    problems = [
        f"{option} {value!r}: blanks, quotes, # and control characters cannot stand there; leave them out"
        for option, value in values.items()
        if value is not None and not re.fullmatch(r"[^\s'\"\\`\x00-\x1f\x7f-\x9f#]+", value)
    ]
    if batch.directives and not batch.directives.isprintable():
        problems.append(f"--scheduler-args {batch.directives!r}: it must be one line, without control characters")
    return problems


def _check_word(word: str, scheduler: Scheduler) -> None:
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{word!r}: it is no UTF-8 text, which a batch script is; rename it") from error
    if scheduler.forbidden and re.search(scheduler.forbidden, word):
        raise InputError(f"{word!r}: {scheduler.title} would read a directive in it; write it otherwise")


def quote(words: str | Sequence[str]) -> str:
    r"""Quote a word, or words, for sh.

    No line within begins with #: schedulers look for their directives in the whole script.

    >>> print(quote(("echo", "a\n#BSUB -q x")))
    echo 'a
    ''#BSUB -q x'
    """
    if isinstance(words, str):
        return shlex.quote(words).replace("\n", "\n''")
    return " ".join(map(quote, words))


def scalar(value: str | Sequence[str]) -> str:
    r"""Render a string, or a list of them, as YAML that fits on one line.

    >>> scalar("a: 'b'"), scalar(["x", "3"])
    ('"a: \'b\'"', '["x", "3"]')
    """
    import yaml  # noqa: PLC0415 - 20 ms, for Kubernetes alone

    text = value if isinstance(value, str) else list(value)
    return str(
        yaml.safe_dump(text, default_flow_style=True, default_style='"', width=float("inf"), allow_unicode=False)
    ).strip()


def render(batch: BatchJob, scheduler: Scheduler, template: str, where: str, version: str) -> str:
    """Return the script (or manifest) of a Jinja2 template's text.

    Templates see `job` (a Batch), `time` and `warn` (as the scheduler writes times; none: empty), `version`, and the
    filters `sh` and `yaml`. Raises InputError for what `check` finds, and where the template is wrong.
    """
    import jinja2  # noqa: PLC0415 - 40 ms, for this command alone

    check(batch, scheduler)
    environment = jinja2.Environment(  # noqa: S701 - no HTML
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"sh": quote, "yaml": scalar}
    try:
        return environment.from_string(template).render(
            job=batch,
            time=scheduler.time(batch.seconds) if batch.seconds else "",
            warn=scheduler.time(batch.warn) if batch.warn else "",
            version=version,
        )
    except jinja2.TemplateError as error:
        line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise InputError(f"template {where}{line}: {error.message}") from error
