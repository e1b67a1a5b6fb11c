import sys
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.allreduce_algorithms import BETWEEN_HOSTS, MIB, Tuning, grow_chunks, host_part
from ddlrun.ddl.group.settings import parse_tuning
from ddlrun.ddl.launch_context import MODES, Options, check_size, find_context, find_transport, parse_options
from ddlrun.errors import InputError
from ddlrun.topology import RankOrder, Topology

TOPOLOGIES = st.lists(st.integers(1, 99), min_size=1, max_size=4).map(lambda dims: Topology(tuple(dims)))
OPTIONS = st.builds(
    Options, st.sampled_from(sorted(MODES)), TOPOLOGIES | st.none(), st.integers(0, 10**6), st.integers(0, 2),
    st.integers(0, 10**6), st.integers(0, 2),
)  # fmt: skip


@given(OPTIONS)
def test_a_string_is_parsed_to_its_options(options: Options) -> None:
    shape = f":{options.topology}" if options.topology else ""
    numbers = "".join(f" -{name} {number}" for name, number in asdict(options).items() if isinstance(number, int))
    assert parse_options(f"-mode {options.mode}{shape}{numbers}") == options


def test_every_option_of_the_ddl_string() -> None:
    text = "-mode b:4x2x3 -dump_iter 100 -dev_sync 1 -rebind_iter 50 -dbg_level 2"
    assert parse_options(text) == Options("b", Topology((4, 2, 3)), 100, 1, 50, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-mode x:4x2", "unknown letter 'x'; one of b (NCCL"),
        ("-mode r:4y2", "'4y2' is not a positive integer"),
        ("-mode", "-mode has no value"),
        ("-mode -dbg_level 1", "-mode has no value"),
        ("-dev_sync 3", "-dev_sync '3' is not one of 0, 1, 2"),
        ("-dump_iter often", "-dump_iter 'often' is not a number from 0 on"),
        ("-shape 4x2", "unknown option '-shape'; known are -mode b|n|r|m|c|p:XxYxZ, -dump_iter N, -dev_sync 0|1|2"),
    ],
)
def test_errors_are_one_line_with_the_allowed_values(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_options(text)
    assert message in str(caught.value)
    assert str(caught.value).startswith("DDL_OPTIONS")
    assert all("\n" not in problem for problem in caught.value.problems)


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        parse_options("-mode x -dev_sync 9")
    assert len(caught.value.problems) == 2


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        assert isinstance(parse_options(text), Options)
    except InputError as error:
        assert error.problems


def test_a_wrong_product_shows_both_numbers() -> None:
    with pytest.raises(InputError, match="invalid dim size: 4 x 2 x 3 = 24 learners, but 16 ranks run"):
        check_size(Topology((4, 2, 3)), 16, "DDL_OPTIONS")


LAUNCHED = {"DDLRUN_TOPOLOGY": "2x2x2", "DDLRUN_RANK_ORDER": "host", "DDL_OPTIONS": "-mode c:2x2x2"}


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        (None, LAUNCHED, ("c", (2, 2, 2), RankOrder.HOST)),
        ("-mode r:8", LAUNCHED, ("r", (8, 1, 1), RankOrder.HOST)),
        ("-mode m", LAUNCHED, ("m", (2, 2, 2), RankOrder.HOST)),
        (None, {"DDL_OPTIONS": "-mode p:4x2x1"}, ("p", (4, 2, 1), RankOrder.DDL)),
        (None, {}, ("r", (8, 1, 1), RankOrder.DDL)),
    ],
)
def test_the_source_of_the_shape(
    options: str | None, environ: dict[str, str], expected: tuple[str, tuple[int, ...], RankOrder]
) -> None:
    shape = find_context(options, 8, environ)
    assert (shape.options.mode, shape.topology.dims, shape.order) == expected


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(InputError, match="DDLRUN_RANK_ORDER 'sideways': one of ddl, host"):
        find_context(None, 1, {"DDLRUN_RANK_ORDER": "sideways"})


def test_tuning_changes_the_default() -> None:
    assert parse_tuning("chunk=256K, depth=4,flat=0", BETWEEN_HOSTS) == Tuning(
        262144, 4, 0, BETWEEN_HOSTS.bucket, explore=0
    )
    assert parse_tuning("bucket=1M", BETWEEN_HOSTS).explore == BETWEEN_HOSTS.explore
    assert parse_tuning("chunk=1M,explore=7", BETWEEN_HOSTS).explore == 7
    assert parse_tuning("measure=0", BETWEEN_HOSTS).measure == 0
    assert parse_tuning("connections=16", BETWEEN_HOSTS) == BETWEEN_HOSTS._replace(connections=16)
    assert parse_tuning("", BETWEEN_HOSTS) == BETWEEN_HOSTS


@pytest.mark.parametrize("text", ["chunk", "chunk=0", "chunk=-1", "depth=K", "speed=9", "chunk=1T", "=", "chunk=²"])
def test_wrong_tuning_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not NAME=NUMBER with chunk, depth, flat, bucket"):
        parse_tuning(text, BETWEEN_HOSTS)


def test_the_number_of_connections_is_limited() -> None:
    with pytest.raises(InputError, match=r"^DDLRUN_DDL_TUNING 'connections=17': connections is at most 16$"):
        parse_tuning("connections=17", BETWEEN_HOSTS)


def test_without_mpi4py_ranks_of_a_job_use_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)  # as where it is not installed
    of_an_agent = {"PMI_RANK": "0", "PMI_SIZE": "2"}
    assert find_transport({**of_an_agent, "RANK": "0", "WORLD_SIZE": "2"}) == "tcp"
    assert find_transport(of_an_agent) == "mpi"  # fails, where the rank would otherwise be alone


@given(st.integers(1, 64 * MIB), st.integers(2, 8))
def test_ranks_of_a_host_exchange_parts_of_arrays_of_more_than_ten_chunks(size: int, ranks: int) -> None:
    chunk = grow_chunks(BETWEEN_HOSTS, size, local_ranks=0, weighted=False).chunk
    part = host_part(size, chunk, ranks)
    assert bool(part) == (size > 10 * chunk)
    assert part <= min(size / 4, 2 * MIB * ranks)
    assert not part or (size > 10 * MIB and part > chunk)
    assert host_part(size, chunk, 1) == 0
