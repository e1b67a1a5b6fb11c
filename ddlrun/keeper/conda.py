"""The activation of a conda environment that was shipped to this host."""

from __future__ import annotations

import os

# The output of scripts is no output of the program.
RUN_SCRIPTS = 'for ddlrun_script; do . "$ddlrun_script" >&2; done; unset ddlrun_script; exec /usr/bin/env -0'


def activate_conda(prefix: str) -> None:
    """Set the variables of an environment, also those that its scripts in activate.d set. Raises OSError."""
    os.environ["CONDA_PREFIX"] = prefix
    own = f"{prefix}/bin"
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([own, *(folder for folder in folders if folder != own)])
    folder = f"{prefix}/etc/conda/activate.d"
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    scripts = [f"{folder}/{name}" for name in names if name.endswith(".sh")]
    if scripts:
        _run_scripts(scripts)


def _run_scripts(scripts: list[str]) -> None:
    """Take over the variables that scripts set and unset. Raises OSError where they fail."""
    import shutil  # noqa: PLC0415 - for such environments alone
    import subprocess  # noqa: PLC0415 - the same

    shell = shutil.which("bash") or "sh"  # scripts of packages are often written for bash
    argv = [shell, "-c", RUN_SCRIPTS, "activate", *scripts]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)  # noqa: S603
    variables = dict(word.split(b"=", 1) for word in done.stdout.split(b"\0") if b"=" in word)
    if done.returncode or not variables:
        raise OSError(0, f"a script ended with exit code {done.returncode}", os.path.dirname(scripts[0]))
    for name in set(os.environ) - set(map(os.fsdecode, variables)):
        if name.isidentifier():  # a shell does not pass on others
            del os.environ[name]
    os.environb.update(variables)
