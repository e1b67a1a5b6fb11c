"""Host lists and hostfiles."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.errors import InputError
from ddlrun.host_names import MOST_HOSTS
from ddlrun.hosts import Host, HostList, fold, parse_hostfile, parse_hosts, render_hostfile

names = st.from_regex(r"[a-z][a-z0-9-]{0,8}[0-9]{0,3}", fullmatch=True).filter(lambda name: not name.endswith("-"))
numbered = st.builds("{}{:0{}}".format, st.sampled_from(("n", "m-")), st.integers(0, 120), st.integers(1, 4))
hosts = st.builds(
    Host, names, st.none() | st.integers(1, 64), st.none() | st.from_regex(r"r[0-9]{1,3}", fullmatch=True)
)
host_lists = st.lists(hosts, min_size=1, max_size=20, unique_by=lambda host: host.name)


@given(host_lists)
def test_hostfile_and_value_are_inverses(listed: list[Host]) -> None:
    assert list(parse_hostfile(render_hostfile(listed), "F")) == listed


@given(st.lists(names | numbered, min_size=1, max_size=20, unique=True))
def test_folded_names_parse_to_the_same_names(listed: list[str]) -> None:
    assert list(parse_hosts(fold(listed)).names) == listed


@given(st.text(max_size=40))
def test_any_text_is_hosts_or_an_input_error(text: str) -> None:
    for parse in (parse_hosts, parse_hostfile):
        try:
            host_list = parse(text, "F")
        except InputError as error:
            assert error.problems
            assert all(problem.startswith("F") for problem in error.problems)
        else:
            assert len(set(host_list.names)) == len(host_list)


@given(st.text(alphabet="n[]0123456789-,:/ .", max_size=20))
def test_the_number_of_hosts_is_limited(text: str) -> None:
    try:
        host_list = parse_hosts(text)
    except InputError as error:
        assert error.problems
    else:
        assert 1 <= len(host_list) <= MOST_HOSTS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b,a", ["b", "a"]),
        ("sys-[89074-89079]", [f"sys-{n}" for n in range(89074, 89080)]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1-3,7]-ib", ["n1-ib", "n2-ib", "n3-ib", "n7-ib"]),
        ("r[1-2]n[1-2],x", ["r1n1", "r1n2", "r2n1", "r2n2", "x"]),
        ("n[3,1-2]", ["n3", "n1", "n2"]),
        ("n[010,9,8]", ["n010", "n9", "n8"]),
        ("n[20,10-16/3]", ["n20", "n10", "n13", "n16"]),
        ("r[2,1]n[2,1]", ["r2n2", "r2n1", "r1n2", "r1n1"]),
        ("r[2,1][4-5]", ["r24", "r25", "r14", "r15"]),
        ("[7]1[7]", ["717"]),
        ("n[09-11],m[99-101]", ["n09", "n10", "n11", "m99", "m100", "m101"]),
        ("n[98-101]-ib,n[08-100/46]", ["n98-ib", "n99-ib", "n100-ib", "n101-ib", "n08", "n54", "n100"]),
        ("n[3,1]:2,m", ["n3", "n1", "m"]),
        ("10.0.0.1,::1,fe80::1", ["10.0.0.1", "::1", "fe80::1"]),
        (" a , b ", ["a", "b"]),
    ],
)
def test_lists_keep_their_order(text: str, expected: list[str]) -> None:
    assert list(parse_hosts(text).names) == expected


def test_order_inside_brackets_is_kept_in_hostfiles() -> None:
    text = "n[30,20,10] slots=2\nr[2,1]n[2-3]\nm[1,1]\n"
    listed = [Host(name, 2) for name in ("n30", "n20", "n10")] + [Host(n, 1) for n in ("r2n2", "r2n3", "r1n2", "r1n3")]
    assert list(parse_hostfile(text, "F")) == [*listed, Host("m1", 2)]


@pytest.mark.parametrize(
    ("listed", "text"),
    [
        ("n3 n1 n2", "n[3,1-2]"),
        ("n99 n100 n101", "n[99-101]"),
        ("n01 n1 n2 n n3", "n[01,1-2],n,n3"),
        ("n9 n09 n10", "n[9,09-10]"),
        ("n1 n1 n2", "n[1,1-2]"),
        ("r1n2 r1n3 r2n2 ::1 ::2", "r1n[2-3],r2n2,::1,::2"),
    ],
)
def test_ranges_of_names_keep_their_order(listed: str, text: str) -> None:
    assert fold(listed.split()) == text


def test_slots_follow_a_colon() -> None:
    assert [host.slots for host in parse_hosts("a:2,n[1-2]:4,[::1]:3,b")] == [2, 4, 4, 3, None]
    assert parse_hosts("a,n[1,2],").names == ("a", "n1", "n2")  # as `tr '\\n' ,` of a file writes it


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "column 1: a host name is missing"),
        ("a,,b", "column 3"),
        ("a,b:0", "column 3: '0' is not a number of slots"),
        ("n[1-4", "has an unmatched bracket"),
        ("n[4-1]", "smaller number first"),
        ("n[1-2,2]", "'n2' is listed twice, at positions 2 and 3"),
        ("n[1-99999999999]", "at most 1000000"),
        ("n[1-9999]m[1-9999]", "at most 1000000"),
        ("n[1-010]", "padded differently"),
        ("n[1-[2-3]]", "has an unmatched bracket"),
        ("me@a", "~/.ssh/config"),
        ("-oProxyCommand=x", "is not a host name"),
        ("a;reboot", "is not a host name"),
        ("h1 h2", "is not a host name; put commas between hosts"),
        ("10.0.0.1,256.1.1.1", "column 10: '256.1.1.1' is not an IP address"),
        ("a,b,a", "'a' is listed twice, at positions 1 and 3; list each host once (a:2 gives it 2 slots)"),
        ("a:2,b,a:4", "list each host once (a:6 gives it 6 slots)"),
        (",", "column 1: a host name is missing"),
        ("a,,", "column 3: a host name is missing"),
    ],
)
def test_each_error_in_a_list_has_its_column(text: str, part: str) -> None:
    with pytest.raises(InputError, match="hosts") as caught:
        parse_hosts(text)
    assert part in str(caught.value)


def test_all_errors_of_a_list_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        parse_hosts("a;b,ok,c d")
    assert len(caught.value.problems) == 2


def test_dialects_of_hostfiles() -> None:
    text = "# comment\na slots=4 max_slots=8 rack=r1\nb:4   # colon\n\nc 4\nn[01-02] slots=4\n10.0.0.1\n::1 slots=1\r\n"
    assert [(host.name, host.slots, host.rack) for host in parse_hostfile(text, "F")] == [
        ("a", 4, "r1"),
        ("b", 4, None),
        ("c", 4, None),
        ("n01", 4, None),
        ("n02", 4, None),
        ("10.0.0.1", None, None),
        ("::1", 1, None),
    ]


@pytest.mark.parametrize(
    ("line", "slots"),
    [
        ("a slots = 4", 4),
        ("a slots= 4 rack =r1", 4),
        ("a count=3", 3),
        ("a cpu =3", 3),
        ("a max_slots=2", 2),
        ("a slots-max=2", 2),
        ("a max-cpu = 2", 2),
        ("a count_max=8 count=4", 4),
        ("a\tslots=2 // two", 2),
        ("/* one\nb slots=1 */\na slots=2 /* two */", 2),
        ("a slots=2 # no newline", 2),
        ("a 4 max_slots=4", 4),
    ],
)
def test_words_of_open_mpi(line: str, slots: int) -> None:
    assert [(host.name, host.slots) for host in parse_hostfile(line, "F")] == [("a", slots)]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("a slots=4 max_slots=2", "line 1: slots=4 is more than max_slots=2; correct one of them"),
        ("a:4 max-count=2", "slots=4 is more than max_slots=2"),
        ("a slots=2 count=2", "column 11: 'count=2' is unknown or repeated"),
        ("/* x\n*/ a slots=", "line 2, column 6: '' is not a number of slots"),
        ("a slots==4", "column 3: '=4' is not a number of slots"),
        ("a = 4", "column 1: 'a = 4' is not a host name"),
        ("a 4 = 4", "column 3: '4 = 4' is unknown or repeated"),
        ("a port=2222", "'port=2222' has no effect in a hostfile of ddlrun; set Port of the host in ~/.ssh/config"),
        ("a username = ada", "set User of the host in ~/.ssh/config"),
        ("10.0.0.1:2222 slots=2", "the number after the colon is that of slots; set Port in ~/.ssh/config"),
        ("rank 0=a slot=0", "a rank file is an option of its own: --rankfile FILE"),
        ("h1, h2", "line 1: 'h1,' is not a host name; write one host per line"),
        ("h1,h2 slots=2", "'h1,h2' is not a host name"),
    ],
)
def test_refused_lines_of_a_hostfile(line: str, part: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_hostfile(line, "F")
    assert part in str(caught.value)


def test_repeated_lines_of_a_node_file_add_up_to_slots() -> None:
    assert list(parse_hostfile("a\na\nb\nb\na\n", "F")) == [Host("a", 3), Host("b", 2)]
    assert list(parse_hostfile("a slots=2\nb 1\na slots=3\n", "F")) == [Host("a", 5), Host("b", 1)]
    assert list(parse_hostfile("a\na\nb\n", "F")) == [Host("a", 2), Host("b", 1)]
    assert list(parse_hostfile("a slots=4\nb\n", "F")) == [Host("a", 4), Host("b")]


def test_each_error_in_a_hostfile_has_its_line_and_column() -> None:
    with pytest.raises(InputError) as caught:
        parse_hostfile("a slots=x\nb\nc foo=1\nd 4 slots=4\n", "hostfile F")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "hostfile F, line 1, column 3",
        "hostfile F, line 3, column 3",
        "hostfile F, line 4, column 5",
    ]


def test_an_empty_hostfile_is_an_error() -> None:
    with pytest.raises(InputError, match="hostfile F: no hosts"):
        parse_hostfile("# comment\n", "hostfile F")


def test_a_host_list_has_no_duplicates() -> None:
    with pytest.raises(InputError, match="is listed twice"):
        HostList((Host("a"), Host("a")), "x")


def test_a_host_in_two_racks_is_an_error() -> None:
    with pytest.raises(InputError, match="f, line 3: a is in rack r2, but in r1 on an earlier line"):
        parse_hostfile("a rack=r1\nb rack=r1\na rack=r2\n", "f")
