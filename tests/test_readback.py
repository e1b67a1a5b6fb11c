"""The ranks' records are taken out of what mpirun prints, however it comes in pieces."""

from hypothesis import given
from hypothesis import strategies as st

from ddlrun.readback import ReadBack


def record(rank: int) -> bytes:
    return b"\x1eddlrun\t%d\th\t0-3\t0-3\t\t\x1e\n" % rank


PIECES = st.lists(
    st.one_of(
        st.integers(0, 9).map(record),
        st.sampled_from(
            [b"\x1e", b"\x1eddlrun", b"\x1eddlrun\t1\t\x1e\n", b"\n", b"text", b"\xff", b"[1,0]<stderr>: "]
        ),
        st.binary(max_size=8),
    ),
    max_size=12,
)


@given(PIECES, st.lists(st.integers(1, 30), max_size=20))
def test_pieces_do_not_matter(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    whole, parts = ReadBack(), ReadBack()
    feed = whole.stream()
    expected = feed(data) + feed(b"")
    feed, out, rest = parts.stream(), b"", data
    for cut in cuts:
        out += feed(rest[:cut]) if rest[:cut] else b""
        rest = rest[cut:]
    out += (feed(rest) if rest else b"") + feed(b"")
    assert len(out) >= len(expected)  # a tag may have been passed on before its record came
    assert parts.records == whole.records
    if b"<stderr>" not in data:
        assert out == expected


@given(st.binary())
def test_what_is_no_record_passes_unchanged(data: bytes) -> None:
    feed = ReadBack().stream()
    assert feed(data) + feed(b"") == data


def test_records() -> None:
    read_back = ReadBack()
    feed = read_back.stream()
    assert feed(b"a" + record(1)[:9]) == b"a"
    assert feed(record(1)[9:] + b"b" + record(0) + b"[1,2]<stderr>: " + record(2)) == b"b"
    told = read_back.as_dict(4)
    assert (told["ranks"], told["reported"], told["different"]) == (4, 3, [])
    assert told["bindings"][0] == {  # type: ignore[index]
        "rank": 0, "host": "h", "cpus": "0-3", "planned": "0-3", "gpus": "", "problem": "",
    }  # fmt: skip
