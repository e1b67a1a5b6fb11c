"""ddlrun config: the value of each option of a launch, and where it comes from."""

from collections.abc import Iterator
from typing import Any

import click

from ddlrun.application.profile_store import stored_profiles
from ddlrun.cli.launch import command as launch
from ddlrun.cli.options import Option, Sections, argument, option
from ddlrun.cli.options.configuration import find_configuration, source_of
from ddlrun.cli.options.translation import translate
from ddlrun.cli.options.types import Choice
from ddlrun.cli.result import print_result
from ddlrun.environment.secrets import REDACTED, has_secret, redact
from ddlrun.hosts import fold
from ddlrun.plan.precedence import DEFAULT
from ddlrun.report.table import left_aligned

LAUNCH_OPTIONS = tuple(
    param for param in launch.params if isinstance(param, Option) and param.name not in ("as_json", "check_build")
)


class Config(Sections):
    """A command that also takes launch's options."""

    borrowed = LAUNCH_OPTIONS

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Translate options of other launchers, then parse."""
        first = 1 if args and not args[0].startswith("-") else 0
        translated = translate(args[first:], self.get_params(ctx))
        return super().parse_args(ctx, [*args[:first], *translated.words])


@click.command("config", cls=Config)
@argument(
    "what", metavar="[show]", default="show", type=Choice(["show"], {"list": "show", "get": "show", "print": "show"})
)
@option("Output", "--all", "show_all", is_flag=True, help="Also show the options that have ddlrun's default.")
@option("Output", "--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, /, what: str, *, show_all: bool, as_json: bool, **_: Any) -> None:  # noqa: ANN401, ARG001 - click's own
    """Show the options of a launch, and where each value comes from.

    \b
    A later source overrides an earlier one:
      ~/.config/ddlrun/config.yaml   your own config file
      ddlrun.yaml                    the project's, in this folder or above it
      --config-file FILE             another config file
      DDLRUN_BIND=numa               an environment variable for each option
      --bind numa                    the command line

    The options of ddlrun launch are accepted, as they would be given there.
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with \b
    configuration = find_configuration(ctx)
    records = [record for record in _options(ctx) if show_all or record["source"] != DEFAULT]
    variables = [_redact_assignment(word) for word in configuration.assignments]
    profiles = list(_describe_profiles()) if ctx.params["profile"] == "auto" else []
    record = {
        "files": list(configuration.files),
        "options": records,
        "profiles": profiles,
        "env": variables,
    }
    rows = [(shown["option"], _render_value(shown["value"]), shown["place"] or shown["source"]) for shown in records]
    rows += [("--env", word, "env of a config file, or DDLRUN_ENV") for word in variables]
    lines = [*(f"config file {path}" for path in configuration.files), *(f"--profile auto: {it}" for it in profiles)]
    lines += left_aligned(rows) if rows else ["every option has ddlrun's default: see --all"]
    print_result(record, "".join(f"{line}\n" for line in lines), as_json=as_json)


def _describe_profiles() -> Iterator[str]:
    """Yield a line per stored profile: where it is used, and its file."""
    for path, profile in stored_profiles():
        yield f"{profile} on {fold(profile.hosts)}, {profile.topology}: {path}"


def _options(ctx: click.Context) -> Iterator[dict[str, Any]]:
    """Yield a record for each parameter of launch."""
    values, seen = find_configuration(ctx).values, set[str]()
    for param in LAUNCH_OPTIONS:
        name = str(param.name)
        if name in seen or not param.expose_value:
            continue
        seen.add(name)
        value, source = ctx.params[name], source_of(ctx, name)
        place = values[name].place if name in values and values[name].source == source else None
        shown = [_redact_assignment(word) for word in value] if isinstance(value, tuple) else value
        if isinstance(value, str) and has_secret(value):
            shown = REDACTED
        yield {"option": _option_name(name, value), "value": shown, "source": source, "place": place}


def _option_name(parameter: str, value: object) -> str:
    """Return the long name of a parameter's option; of several switches, the one for the value."""
    options = [option for option in LAUNCH_OPTIONS if option.name == parameter]
    chosen = next((option for option in options if option.flag_value == value), options[0])
    return max(chosen.opts, key=len)


def _redact_assignment(word: str) -> str:
    """Return NAME=VALUE, with a secret value left out."""
    name, equals, value = word.partition("=")
    return f"{name}={redact({name: value})[name]}" if equals else word


def _render_value(value: object) -> str:
    """Return a value as it would stand on the command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return " ".join(value) if isinstance(value, list) else str(value)
