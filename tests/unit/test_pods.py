"""Programs in pods: the command lines of kubectl exec and of the MPI operator's kubexec.sh."""

import os
import subprocess
from pathlib import Path

import pytest

from ddlrun.errors import InputError
from ddlrun.hosts import parse_hosts
from ddlrun.managers import DaemonRequest
from ddlrun.managers.openmpi.dialects import parse_program
from ddlrun.remote.agent import AgentLauncher, choose_launcher, run_script
from ddlrun.remote.fan_out import run_on_hosts

HOSTS = parse_hosts("pod-0.train,pod-1.train")


@pytest.fixture
def pods(tmp_path: Path) -> dict[str, str]:
    """Provide the environment of a launcher's pod, whose kubectl prints its arguments and its standard input."""
    programs = {
        "kubectl": 'echo "$*"; [ "$2" != --stdin ] || cat',
        "kubexec.sh": f'set -x\nPOD=$1\nshift\n{tmp_path}/kubectl exec $POD --container main -- /bin/sh -c "$*"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OMPI_MCA_plm_rsh_agent": f"{tmp_path}/kubexec.sh"}


def run_shell(launcher: AgentLauncher, environ: dict[str, str]) -> list[str]:
    """Run the shell of a launcher on the first host; return what it prints."""
    argv = [HOSTS.names[0] if word == "@host" else word for word in launcher.shell]
    done = subprocess.run(argv, env=environ, input="script\n", capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("request_", "command"),
    [
        ("kubectl", "exec --stdin pod-0 -- /bin/sh -c "),
        ("agent", "exec --stdin pod-0.train --container main -- /bin/sh -c "),
    ],
)
def test_a_shell_in_a_pod_gets_its_script(pods: dict[str, str], request_: str, command: str) -> None:
    launcher = choose_launcher(request_, None, HOSTS, (), pods)
    assert run_shell(launcher, pods) == [command + run_script(), "script"]
    assert (launcher.passes_stdin, launcher.needs_names, launcher.works_everywhere) == (True, False, False)


def test_a_script_for_a_pod_goes_there_with_its_length(pods: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", pods["PATH"])
    reply = run_on_hosts({"pod-0.train": "script\n"}, choose_launcher("kubectl", None, HOSTS, (), pods), 300.0)
    script = "{\nscript\n\n}"
    command = f"exec --stdin pod-0 -- /bin/sh -c {run_script(str(len(script) + 1))}"
    assert reply["pod-0.train"].out == f"{command}\n{script}"


def test_an_agent_of_the_user_is_called_as_it_is() -> None:
    launcher = choose_launcher("agent", None, HOSTS, (), {"PRTE_MCA_plm_ssh_agent": "/opt/enter --quietly"})
    assert launcher.shell == ("/opt/enter", "--quietly", "@host", run_script())
    assert not launcher.passes_stdin
    with pytest.raises(InputError, match="which names it, is not set"):
        choose_launcher("agent", None, HOSTS, (), {})


@pytest.mark.parametrize(("major", "prefix"), [(4, "OMPI_MCA_plm_rsh"), (5, "PRTE_MCA_plm_ssh")])
def test_mpirun_starts_its_daemons_by_kubectl(major: int, prefix: str, pods: dict[str, str]) -> None:
    launcher = choose_launcher("kubectl", None, HOSTS, (), pods)
    variables = parse_program(f"(Open MPI) {major}.0", "mpirun", "").daemon_variables(
        DaemonRequest(launcher.launcher, launcher.words, 2), pods
    )
    assert variables[f"{prefix}_no_tree_spawn"] == "1"
    words = variables[f"{prefix}_agent"].split()  # as Open MPI does
    done = subprocess.run([*words, "pod-1", "orted", "a b"], env=pods, capture_output=True, text=True, check=True)
    assert done.stdout == "exec --stdin pod-1 -- /bin/sh -c orted a b\n"
