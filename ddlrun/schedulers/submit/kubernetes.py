"""Kubernetes with the MPI operator: MPIJob v2beta1."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ddlrun.errors import EXIT_TIMED_OUT
from ddlrun.schedulers.submit import BatchJob, JobState, Scheduler, StateQuery

LABEL = "ddlrun/job"
LAUNCHER = f"{LABEL}={{id}},ddlrun/role=launcher"


def parse_job(text: str) -> JobState | None:
    """Parse `kubectl get mpijobs,pods -o json`: the job's last true condition, and the exit code of its launcher."""
    try:
        reply = json.loads(text)
    except ValueError:
        return None
    items = reply.get("items", [reply])
    job = next((item for item in items if item.get("kind") == "MPIJob"), None)
    if job is None:
        return None
    conditions = [item for item in job.get("status", {}).get("conditions", []) if item.get("status") == "True"]
    for condition in conditions:
        if condition["type"] == "Succeeded":
            return JobState("Succeeded", 0)
        if condition["type"] == "Failed":
            timed_out = "DeadlineExceeded" in f"{condition.get('reason')} {condition.get('message')}"
            return JobState("Failed", EXIT_TIMED_OUT if timed_out else _exit_code(items))
    return JobState(conditions[-1]["type"] if conditions else "Pending")


def _exit_code(items: Sequence[Mapping[str, Any]]) -> int:
    """Return the exit code of the last launcher pod that failed, 1 where there is none."""
    launchers = [
        item for item in items
        if item.get("kind") == "Pod" and item["metadata"].get("labels", {}).get("ddlrun/role") == "launcher"
    ]  # fmt: skip
    launchers.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
    codes = [
        status.get("state", {}).get("terminated", {}).get("exitCode")
        for pod in launchers
        for status in pod.get("status", {}).get("containerStatuses", [])
    ]
    return next((int(code) for code in reversed(codes) if code), 1)


def _find_problems(batch: BatchJob) -> list[str]:
    problem = "Kubernetes needs --image NAME, with ddlrun, Open MPI and sshd in it; or name another --scheduler"
    return [] if batch.image else [problem]


KUBERNETES = Scheduler(
    name="kubernetes",
    title="Kubernetes",
    command="kubectl",
    template="mpijob.yaml.j2",
    submit=("kubectl", "create", "-f", "-", "-o", "name"),
    job_id=r"([a-z0-9.-]+)\s*$",
    state_queries=(
        StateQuery(("kubectl", "get", "mpijobs,pods", "-l", f"{LABEL}={{id}}", "-o", "json"), parse_job),
        StateQuery(("kubectl", "get", "mpijob", "{id}", "-o", "json"), parse_job),  # for a template of the user
    ),
    status=("kubectl", "get", "mpijobs,pods", "-l", f"{LABEL}={{id}}"),
    cancel=("kubectl", "delete", "mpijob", "{id}"),
    unknown_job="NotFound|not found",
    format_time=str,
    print_log=("kubectl", "logs", "-f", "--tail=-1", "-l", LAUNCHER),
    gpu_query=(("kubectl", "get", "nodes", "-o", r"jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}"), r"[1-9]"),
    find_problems=_find_problems,
    unsupported={
        "account": "Kubernetes has no accounts; set the namespace in kubectl",
        "exclusive": "a pod gets what its limits name; give --cores, --mem and --gpus the totals of a host",
        "modules": "software comes with the image; give --image",
        "container": "the pods are containers already; give --image",
        "log": "the launcher's log is in the pod; read it with kubectl logs",
        "warn": "Kubernetes sends no signal before the limit; use launch's --timeout, which ends the job itself",
        "requeue": "the operator does not restart a job after lost pods; use launch's --restarts",
        "directives": "a manifest has no directives; give your own --template",
    },
)
