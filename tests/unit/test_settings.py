import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.environment.library_settings import SETTINGS, SHOWN
from ddlrun.errors import InputError
from ddlrun.plan.config_file import LAUNCH_KEYS, parse_config

JOBS = Path(__file__).parents[2] / "configs" / "jobs"

HOROVODS_OWN = """
controller: mpi
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 5
  cache_capacity: 2048
  hierarchical_allreduce: true
  hierarchical_allgather: false
  torus_allreduce: false
autotune: {enabled: true, log_file: /tmp/log.csv, warmup_samples: 3, steps_per_sample: 10,
  bayes_opt_max_samples: 20, gaussian_process_noise: 0.8}
timeline: {filename: /tmp/timeline.json, mark_cycles: true}
stall_check: {enabled: true, warning_time_seconds: 60, shutdown_time_seconds: 0}
library_options: {mpi_threads_disable: false, num_nccl_streams: 1, thread_affinity: 0, gloo_timeout_seconds: 30}
logging: {level: INFO, with_timestamp: true, hide_timestamp: false}
"""


def test_horovods_file_is_taken_as_it_is() -> None:
    content = parse_config(HOROVODS_OWN, "F")
    assert {name.replace("_", "-") for name in content.values} == {*SHOWN}
    assert content.values["hierarchical_allreduce"] is True
    variables = dict(word.split("=") for word in content.assignments)
    assert set(variables) == {
        setting.variable for setting in SETTINGS if setting.option not in (*SHOWN, "lms", "lms-frac")
    }
    assert (variables["HOROVOD_CYCLE_TIME"], variables["HOROVOD_STALL_CHECK_DISABLE"]) == ("5.0", "0")


def test_our_keys() -> None:
    text = "hosts: [a, 'b:2']\nmpi: {args: --verbose}\nssh: {port: 2222}\nddl: {mode: p}\nenv: {A: 1, B: true, C: }\n"
    content = parse_config(text, "F")
    assert content.values == {"hosts": "a,b:2", "mpi_args": "--verbose", "ssh_port": "2222", "mode": "p"}
    assert content.assignments == ["A=1", "B=true", "C="]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("params: {fusion_treshold_mb: 1}", "'params.fusion_treshold_mb' is not known (did you mean params.fusion_thr"),
        ("topolgy: 4x2", "did you mean topology?"),
        ("controller: nccl", "controller: 'nccl': ddlrun starts Horovod over MPI; leave it out"),
        ("num_proc: 2", "'num_proc' is not known; ddlrun show schema config lists the keys"),
        ("bind: numa", "'bind' is not known (did you mean placement.bind?)"),
        ("run-dir: x", "'run-dir' is not known (did you mean run_dir?)"),
        ("output: {output_filename: x}", "(did you mean output.style?)"),
        ("topology: [4, 2]", "topology: [4, 2]; write one value"),
        ("params: {cycle_time_ms: true}", "params.cycle_time_ms: True; write one value"),
        ("env: {A: [1, 2]}", "env.A: one value is wanted"),
        ("env: [A=1]", "config file F, line 1: env: ['A=1']; write one line per variable below it, as NAME: VALUE"),
        ("nodes: 1\n\nnodes: 2", "line 3: nodes is given twice, first on line 1; leave one out"),
        ("env:\n  A: 1\n  A: 2", "line 3: env.A is given twice"),
        ("ssh:\n\tport: 1", "line 2, column 1: found character"),
        ("- a\n- b", "'key: value' is wanted"),
        ("a: [", "line 1"),
    ],
)
def test_mistakes(text: str, part: str) -> None:
    with pytest.raises(InputError, match=re.escape(part)) as caught:
        parse_config(text, "config file F")
    assert all(
        re.match(r"config file F(, line \d+(, column \d+)?)?: ", problem) and "\n" not in problem
        for problem in caught.value.problems
    )


def test_a_controller_without_effect_is_noted() -> None:
    assert parse_config("# x\ncontroller: gloo\n", "f").notes == [
        "f, line 2: controller: gloo: no effect: ddlrun starts Horovod over MPI"
    ]
    assert parse_config("controller: mpi\n", "f").notes == parse_config("", "f").notes == []


def test_all_unknown_keys_come_together() -> None:
    with pytest.raises(InputError) as caught:
        parse_config("a: 1\nb: 2\n", "F")
    assert len(caught.value.problems) == 2


def test_placement() -> None:
    text = "placement: {reserve_cores: 2, gpu_order: [1, 0], share_gpus: true, packing: pack}\nrankfile: F\n"
    assert parse_config(text, "F").values == {
        "reserve_cores": "2", "gpu_order": "1,0", "share_gpus": True, "packing": "pack", "rankfile": "F",
    }  # fmt: skip
    with pytest.raises(InputError, match=r"F, line 1: placement\.share_gpus: 'x'; write true or false"):
        parse_config("placement: {share_gpus: x}", "F")


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_job_examples(path: Path) -> None:
    assert parse_config(path.read_text(), path.name).values


@given(
    st.dictionaries(
        st.sampled_from([*LAUNCH_KEYS, *(setting.yaml for setting in SETTINGS)]),
        st.booleans() | st.integers() | st.text(),
    )
)
def test_any_value_is_taken_or_refused(found: dict[str, object]) -> None:
    nested: dict[str, dict[str, object]] = {}
    for key, value in found.items():
        section, _, name = key.rpartition(".")
        nested.setdefault(section, {})[name] = value
    flat = {**nested.pop("", {}), **nested}
    try:
        content = parse_config(yaml.safe_dump(flat), "F")
        assert len(content.values) + len(content.assignments) == len(found)
    except InputError as error:
        assert all(re.match(r"F, line \d+: ", problem) for problem in error.problems)
