"""The ranks' output, in pieces of any size: tagged on the console, unchanged in their files."""

import math
import os
import re
import resource
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.errors import InputError
from ddlrun.keeper.program_streams import set_size
from ddlrun.keeper.protocol import ProtocolError
from ddlrun.plan.outcome import Outcome, RankEnd
from ddlrun.plan.run_dir import RunDir
from ddlrun.plan.supervision import OutputStyle
from ddlrun.remote.system_limits import OTHER_FILES
from ddlrun.runs.merged_output import MergedOutput
from ddlrun.runs.output_lines import ESCAPE, LineMerger, RankTags, fit_rewritten, tag_lines, tag_switches
from ddlrun.runs.output_order import OUT, pack_entry
from ddlrun.supervise import folding
from ddlrun.supervise.folding import MOST_LINES, LineFolder
from ddlrun.supervise.rank_files import JobLog, OpenFiles, RankFiles, most_open_files
from ddlrun.supervise.rank_output import RankOutput, split_lines
from ddlrun.supervise.streams import Backlog, OutputStream
from ddlrun.wire.frames import Decoder, Encoder
from tests.support.handshakes import agree

TRACEBACK = b"Traceback (most recent call last):\n"
TEXT = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"\n", b"\r\n", b"\r", "ü\n".encode(), "é".encode()[:1], b"text", b"a\nb\n", TRACEBACK]),
)
PIECES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), TEXT), max_size=30)


@contextmanager
def logging(style: OutputStyle) -> Iterator[tuple[RankOutput, Path, JobLog]]:
    """Yield the RankOutput of three ranks that writes to files `out` and `err` and to a log, and their folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fds = [os.open(folder / stream, os.O_WRONLY | os.O_CREAT) for stream in ("out", "err")]
        if style.folder is not None:
            style = style._replace(folder=str(folder / style.folder))
        streams = [OutputStream(fd, Backlog(str(folder / "unread"))) for fd in fds]
        pool = OpenFiles(100, print)
        log = JobLog(RunDir(name), tag_switches(style, 3), 3, pool)
        log.open()
        files = None if style.folder is None else RankFiles(style.folder, 3, pool)
        output = RankOutput(style, streams, ranks=3, log=log, files=files)
        for rank in range(3):
            output.start(rank, f"h{rank}")
        yield output, folder, log
        pool.close_all()
        for fd in fds:
            os.close(fd)


@contextmanager
def collecting(style: OutputStyle) -> Iterator[tuple[RankOutput, Path]]:
    """Yield the RankOutput of three ranks that writes to files `out` and `err` and to a log, and their folder."""
    with logging(style) as (output, folder, log):
        yield output, folder
        log.flush()


def read_log(folder: Path) -> tuple[bytes, bytes]:
    """Return what a run log has for standard output and standard error."""
    with closing(MergedOutput(str(folder), 3)) as logged:
        blocks = [*logged.read(), *logged.read_rest()]
    return b"".join(text for stream, text in blocks if stream == 0), b"".join(text for stream, text in blocks if stream)


@given(PIECES)
def test_everything_arrives(pieces: list[tuple[int, int, bytes]]) -> None:
    with logging(OutputStyle(folder="files")) as (output, folder, log):
        for rank, stream, data in pieces:
            output.write(rank, stream, data)
        for rank in range(3):
            output.end(rank)
        log.flush()
        logged = read_log(folder)
        for stream, name in enumerate(("out", "err")):
            shown = (folder / name).read_bytes()
            for rank in range(3):
                wrote = b"".join(data for source, target, data in pieces if (source, target) == (rank, stream))
                path = folder / "files" / f"rank.{rank}" / ("stdout", "stderr")[stream]
                assert path.read_bytes() == wrote
                tag = f"[{rank}@h{rank}] ".encode()
                assert all(tag + line in shown for line in wrote.split(b"\n")[:-1] if b"\r" not in line)
            tags = [f"[{rank}@h{rank}] ".encode() for rank in range(3)]
            for tag in tags:
                shown = shown.replace(tag, b"")
            written = b"".join(data for _, target, data in pieces if target == stream)
            assert sorted(shown.replace(b"\n", b"")) == sorted(written.replace(b"\n", b""))
            if TRACEBACK not in written:  # those are printed later
                assert logged[stream] == (folder / name).read_bytes()


@given(PIECES)
def test_the_log_of_a_rank_has_both_streams(pieces: list[tuple[int, int, bytes]]) -> None:
    with collecting(OutputStyle()) as (output, folder):
        for rank, stream, data in pieces:
            output.write(rank, stream, data)
        for rank in range(3):
            output.end(rank)
        for rank in range(3):
            path = folder / "ranks" / f"{rank}.log"
            logged = path.read_bytes() if path.exists() else b""
            wrote = [b"".join(data for *key, data in pieces if key == [rank, stream]) for stream in range(2)]
            assert sorted(logged.replace(b"\n", b"")) == sorted(b"".join(wrote).replace(b"\n", b""))
            assert all(line in logged for text in wrote for line in text.split(b"\n") if b"\r" not in line)


@given(PIECES, st.integers(0, 12))
def test_the_last_lines_are_those_of_all_ranks(pieces: list[tuple[int, int, bytes]], count: int) -> None:
    with logging(OutputStyle()) as (output, folder, log):
        for rank, stream, data in pieces:
            output.write(rank, stream, data)
            log.flush()
        with closing(MergedOutput(str(folder), 3)) as reader:
            lines = b"".join(text for _, text in reader.read()).splitlines(keepends=True)
            assert [*reader.read()] == []
        with closing(MergedOutput(str(folder), 3)) as reader:
            last = [text for _, text in reader.read_last(count)]
            output.write(0, 0, b"more\n")
            log.flush()
            assert b"".join(text for _, text in reader.read()).endswith(b"more\n")
    ends = [line for line in re.split(rb"(?<=\n)", b"".join(lines)) if line]
    assert b"".join(last).endswith(b"".join(ends[-count:] if count else [])) or b"\r" in b"".join(lines)


def test_few_files_are_open(tmp_path: Path) -> None:
    ranks, before = 100, resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (ranks + OTHER_FILES + 10, before[1]))
    try:
        log = JobLog(
            RunDir(str(tmp_path)), tag_switches(OutputStyle(), ranks), ranks, OpenFiles(most_open_files(ranks), print)
        )
        log.open()
        at_first = len(os.listdir("/proc/self/fd"))
        for number in (b"1\n", b"2\n"):
            for rank in range(ranks):
                log.write(rank, 0, number)
                assert len(os.listdir("/proc/self/fd")) <= at_first + 10
        for rank in range(ranks):
            log.end(rank)
        log.flush()
        assert len(os.listdir("/proc/self/fd")) == at_first
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [path.read_bytes() for path in (tmp_path / "ranks").iterdir()] == [b"1\n2\n"] * ranks
    assert (tmp_path / "ranks" / "07.log").exists()
    with closing(MergedOutput(str(tmp_path), ranks)) as reader:
        assert b"".join(text for _, text in reader.read()).count(b"\n") == 2 * ranks


def test_output_is_stored_once() -> None:
    with logging(OutputStyle()) as (output, folder, log):
        for _ in range(1000):
            for rank in range(3):
                output.write(rank, 0, b"step 12, loss 0.123456789\n" * 20)
            log.flush()
        stored = sum(
            path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name not in ("out", "err")
        )
        assert stored < 1.03 * 3000 * 20 * 26


def test_logs_of_a_killed_ddlrun_are_readable() -> None:
    with logging(OutputStyle()) as (output, folder, log):
        output.write(0, 0, b"first\n")
        log.flush()
        output.write(1, 1, b"then\n")
        output.write(2, 0, b"last\n")
        order = folder / "output.order"
        order.write_bytes(order.read_bytes() + b"\1\2\3")  # half an entry
        assert read_log(folder)[0] == b"[0@h0] first\n[1@h1] then\n[2@h2] last\n"


def test_a_damaged_order_is_an_error() -> None:
    with logging(OutputStyle()) as (output, folder, log):
        output.write(0, 0, b"first\n")
        log.flush()
        order = folder / "output.order"
        good = order.read_bytes()
        order.write_bytes(good + pack_entry(OUT, 0, (1 << 32) - 1))  # more than its log has
        assert read_log(folder)[0] == b"[0@h0] first\n"
        order.write_bytes(good + pack_entry(OUT, 99, 5))
        with pytest.raises(InputError, match=r"output\.order is damaged"):
            read_log(folder)


def test_a_full_disk_is_reported_once() -> None:
    said: list[str] = []
    log = JobLog(RunDir("/proc/self/none"), tag_switches(OutputStyle(), 3), 3, OpenFiles(9, said.append))
    log.open()
    for rank in range(3):
        log.write(rank, 0, b"x\n")
    log.flush()
    assert said == ["run folder /proc/self/none: No such file or directory; no more output is stored there"]


def test_another_version_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "output.order").touch()  # the run is about to begin it
    assert read_log(tmp_path) == (b"", b"")
    (tmp_path / "output.order").write_bytes(b"ddlrun9\3")
    with pytest.raises(InputError, match="another version of ddlrun wrote it"):
        read_log(tmp_path)


@given(PIECES)
def test_one_rank_without_a_tag_is_untouched(pieces: list[tuple[int, int, bytes]]) -> None:
    with collecting(OutputStyle(tag=False, ranks=frozenset({1}))) as (output, folder):
        for rank, _, data in pieces:
            output.write(rank, 0, data)
        for rank in range(3):
            output.end(rank)
        assert (folder / "out").read_bytes() == b"".join(data for rank, _, data in pieces if rank == 1)


@given(st.lists(TEXT, max_size=20))
def test_tags_can_be_removed(pieces: list[bytes]) -> None:
    held, shown, tag = b"", b"", b"\0<tag>\0"
    for piece in pieces:
        lines, held = split_lines(held + piece)
        assert not lines or lines.endswith((b"\n", b"\r"))
        shown += tag_lines(lines, tag)
    whole = b"".join(pieces)
    assert shown.replace(tag, b"") + held == whole
    ends = whole[: len(whole) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n")
    assert shown.count(tag) == ends


@given(
    st.lists(st.tuples(st.sampled_from([b"o", b"e", b"."]), st.binary(max_size=300)), max_size=10), st.integers(1, 50)
)
def test_messages_arrive_in_any_pieces(messages: list[tuple[bytes, bytes]], size: int) -> None:
    keeper, ddlrun = agree()
    encoder = Encoder(keeper.outgoing, {b"o": 300, b"e": 300, b".": 300})
    decoder = Decoder(ddlrun.incoming, {b"o": 300, b"e": 300, b".": 300})
    data = b"".join(part for kind, text in messages for part in encoder.encode(kind, text))
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [message for piece in pieces for message in decoder.feed(piece)] == messages


@given(
    st.builds(
        RankEnd, exit_code=st.integers(0, 255), signal=st.none() | st.integers(1, 127), seconds=st.floats(0, 1e9),
        max_rss_kib=st.integers(0, 1 << 50), ordered=st.booleans(), taken_port=st.integers(0, 65535),
        reason=st.text("ab \u00e9", max_size=50).map(str.strip).map(lambda text: " ".join(text.split())),
        tail=st.text(max_size=50), output_tail=st.text(max_size=50),
    )
)  # fmt: skip
def test_the_end_of_a_rank_survives_its_message(end: RankEnd) -> None:
    assert RankEnd.parse(end.pack()) == end


def test_texts_in_no_encoding_survive_the_end_of_a_rank() -> None:
    assert RankEnd.parse(RankEnd(reason="a\udcff\tb\n").pack()).reason == "a? b"


@pytest.mark.parametrize("size", [-1, 9])
def test_the_end_of_a_rank_has_no_tail_of_an_impossible_length(size: int) -> None:
    text = RankEnd(tail="seven...").pack().replace(b"8\t", f"{size}\t".encode(), 1)
    with pytest.raises(ProtocolError, match="is not a number from 0 to 8"):
        RankEnd.parse(text)


@given(st.lists(st.binary(min_size=1, max_size=20) | st.integers(1, 30), max_size=50))
def test_a_backlog_is_a_queue_in_memory_and_in_a_file(steps: list[bytes | int]) -> None:
    """Each step appends a block or removes some bytes."""
    expected = b""
    with tempfile.TemporaryDirectory() as folder:
        backlog = Backlog(f"{folder}/unread", limit=10)
        for step in steps:
            if isinstance(step, bytes):
                assert backlog.append(step) == 0
                expected += step
            else:
                head = backlog.head(step)
                assert expected.startswith(head)
                assert bool(head) == bool(expected)
                backlog.remove(len(head))
                expected = expected[len(head) :]
            assert len(backlog) == len(expected)
            assert os.listdir(folder) == []
        backlog.clear()
        assert len(backlog) == 0


def test_bytes_without_a_place_are_counted(tmp_path: Path) -> None:
    backlog = Backlog(str(tmp_path / "missing" / "unread"), limit=10)
    assert [backlog.append(b"x" * 8) for _ in range(3)] == [0, 0, 8]
    assert len(backlog) == 16


def test_a_stream_counts_what_it_could_not_write(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    slow = OutputStream(writer, Backlog(str(tmp_path / "unread")))
    slow.write(b"x" * 200_000)
    slow.close()
    os.set_blocking(reader, False)
    assert len(os.read(reader, 200_000)) + slow.unwritten == 200_000
    gone = OutputStream(writer, Backlog(str(tmp_path / "unread")))
    os.close(reader)
    for _ in range(2):
        gone.write(b"x" * 100)
    os.close(writer)
    assert (gone.closed, gone.unwritten) == (True, 200)


def traceback(error: str, line: int = 1) -> str:
    return f'Traceback (most recent call last):\n  File "t.py", line {line}, in <module>\n{error}\n'


FRAME = '  File "t.py", line {}, in f\n    f()'.format
NEWLINE = "\n"
CAUGHT = traceback("KeyError: 1", 7)
LOST = "Connection closed by peer 1"


def failure(rank: int, tail: str) -> RankEnd:
    return RankEnd(
        rank=rank,
        host=f"h{rank}",
        local_rank=0,
        exit_code=1,
        signal=None,
        seconds=1.0,
        max_rss_kib=0,
        ordered=False,
        reason="",
        tail=tail,
    )


@pytest.mark.parametrize(
    ("tails", "printed"),
    [
        # The report shows the root's own; the others only lost it, in other words for each.
        ([traceback("ValueError: no"), *(traceback(f"Connection closed by peer {n}") for n in (1, 2))], []),
        # As PyTorch writes them; a progress bar was open.
        ([f"{re.sub('(?m)^', '[rank0]: ', traceback('ValueError: no'))}\n",
          f"\r50%[rank1]: {traceback('[rank1]: Connection closed by peer 1')}"], ["[1@h1] "]),
        # All fail in the same line.
        (
            [f"first\n{traceback(f'OSError: no file {n}')}" for n in range(3)],
            ["[0@h0] first", "[1@h1] first", "[2@h2] first"],
        ),
        # Another error is news, but only once. An earlier exception of the root, which was caught, is printed.
        (
            [f"{CAUGHT}{traceback('ValueError: no')}", *(traceback(f"OSError: {n}") for n in (1, 2))],
            [
                *(f"[0@h0] {line}" for line in CAUGHT.splitlines()),
                *(f"[1@h1] {line}" for line in traceback("OSError: 1").splitlines()),
            ],
        ),
        # What a rank wrote before such a traceback is news, too.
        (
            [traceback("ValueError: no"), *(f"{CAUGHT}saving\n{traceback(last)}" for last in (LOST, "ValueError: no"))],
            [f"[1@h1] {line}" for line in f"{CAUGHT}saving".splitlines()],
        ),
    ],
)  # fmt: skip
def test_the_console_has_no_traceback_that_the_report_shows(tails: list[str], printed: list[str]) -> None:
    ends = [failure(rank, tail) for rank, tail in enumerate(tails)]
    with logging(OutputStyle()) as (output, folder, log):
        for end in ends:
            output.write(end.rank, 1, end.tail.encode())
            output.end(end.rank, failed=True)
        log.flush()
        in_view = output.conclude(Outcome(1, None, 1.0, root=ends[0], ends=tuple(ends)))
        assert (folder / "err").read_text().splitlines() == printed
        assert not in_view
        for end in ends:
            tagged = "".join(f"[{end.rank}@h{end.rank}] {line}\n" for line in end.tail.splitlines())
            assert tagged in read_log(folder)[1].decode().replace("\r", "\n")


@pytest.mark.parametrize(("later", "in_view"), [("", True), ("more\n", True), ("more\n" * 40, False)])
def test_last_words_in_view_need_no_repetition(later: str, in_view: bool) -> None:  # noqa: FBT001
    ends = failure(0, "no config file\n"), failure(1, later)
    with collecting(OutputStyle()) as (output, _):
        for end in ends:
            output.write(end.rank, 1, end.tail.encode())
        assert output.conclude(Outcome(1, None, 1.0, root=ends[0], ends=ends)) == in_view


@pytest.mark.parametrize("frames", [7, 70])  # a longer traceback than the report would show
def test_a_traceback_in_view_needs_no_repetition(frames: int) -> None:
    tail = "".join(f"{line}\n" for line in ("Traceback (most recent call last):", *map(FRAME, range(frames)), "E: no"))
    end = failure(0, f"[rank0]: {tail[:-1].replace(NEWLINE, f'{NEWLINE}[rank0]: ')}\n")
    with collecting(OutputStyle()) as (output, folder):
        output.write(0, 1, end.tail.encode())
        if frames == 7:
            output.write(0, 0, b"closing\n")  # the rank went on after its traceback, which was printed
        output.end(0, failed=True)
        assert output.conclude(Outcome(1, None, 1.0, root=end, ends=(end,)))
        assert (folder / "err").read_text().count("E: no") == 1


@pytest.mark.parametrize(
    ("terminal", "written"),
    [
        (True, b"[0] 50%\r\r\x1b[K[1] a\n[0] 60%\r[0] 70%\r\x1b[K[0] b b\n[0] 80%\r\x1b[K"),
        (False, b"[0] 50% #\r[1] a\n[0] 60% #\r[0] 70% #\n[0] b b\n[0] 80% #\n"),
    ],
)
def test_a_progress_bar_gives_way_on_a_terminal(terminal: bool, written: bytes) -> None:  # noqa: FBT001
    ours, theirs = os.openpty()
    set_size(theirs, 24, 7)
    lines = LineMerger(theirs if terminal else None)
    bar, printed = (0, 1), (0, 0)
    pieces = [
        lines.join(bar, b"50% #\r", b"[0] "),
        lines.join((1, 0), b"a\n", b"[1] "),
        lines.join(bar, b"60% #\r", b"[0] "),
        lines.join(bar, b"70% #", b"[0] "),
        lines.join(printed, b"b b\n", b"[0] "),
        lines.join(bar, b"80% #", b"[0] "),
        lines.end_line(),
    ]
    assert b"".join(pieces) == written
    os.close(ours)
    os.close(theirs)


@given(st.text("ab界é\u0301\x1b[31m\udcff", max_size=20), st.integers(0, 20))
def test_a_rewritten_line_fits_into_a_row(text: str, cells: int) -> None:
    line = text.encode(errors="surrogateescape")
    cut = fit_rewritten(line + b"\r", cells, last=False)
    shown = re.sub(ESCAPE, "", cut.decode(errors="surrogateescape")).rstrip("\r")
    assert len(shown) + shown.count("界") - shown.count("\u0301") <= cells
    assert fit_rewritten(line + b"\r", 100, last=False) == line + b"\r"


def test_tracebacks_wait_for_the_report_once_a_rank_has_failed() -> None:
    ends = failure(0, traceback("ValueError: no")), failure(1, traceback("Connection closed by peer 1"))
    with collecting(OutputStyle()) as (output, folder):
        output.write(0, 1, ends[0].tail.encode())
        output.end(0, failed=True)
        output.write(1, 1, ends[1].tail.encode())
        assert output.tick() == math.inf  # no time at which the held tracebacks would be printed
        output.conclude(Outcome(1, None, 1.0, root=ends[0], ends=ends))
        assert (folder / "err").read_text() == ""


def test_tracebacks_of_ranks_that_go_on_are_printed() -> None:
    with collecting(OutputStyle(tag=False)) as (output, folder):
        output.write(0, 1, traceback("ValueError: caught").encode())
        assert (folder / "err").read_text() == ""
        output.write(0, 0, b"next step\n")
        assert (folder / "err").read_text() == traceback("ValueError: caught")
        output.write(1, 1, traceback("ValueError: last").encode())
        output.end(1)
        assert (folder / "err").read_text().endswith("ValueError: last\n")
        output.write(2, 1, (traceback("ValueError: much") + "more\n" * 3000).encode())
        output.write(2, 1, b"more\n")
        assert (folder / "err").read_text().endswith("more\n")


LINES = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([b"a\n", b"b\n", b"50%\r", b"part"])), max_size=30)


@given(LINES)
def test_folded_lines_are_those_of_each_rank_in_their_order(lines: list[tuple[int, bytes]]) -> None:
    folder = LineFolder(3)
    folded = []
    for rank, line in lines:
        folder.add(rank, 0, line)
        folded += folder.take()
    folded += folder.take(everything=True)
    assert folder.deadline() == math.inf
    for rank in range(3):
        assert [line.text for line in folded if rank in line.ranks] == [line for owner, line in lines if owner == rank]


def test_a_folded_line_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "WAIT_SECONDS", math.inf)
    folder = LineFolder(2)
    for number in range(MOST_LINES + 1):
        folder.add(0, 0, b"%d\n" % number)
    assert [line.text for line in folder.take()] == [b"0\n"]


def test_equal_lines_are_folded() -> None:
    with logging(OutputStyle(fold=True)) as (output, folder, log):
        for rank in (2, 0, 1):
            output.write(rank, 0, b"epoch 1\n")
        for rank in (2, 0, 1):
            output.write(rank, 0, b"loss %d\nepoch 2\n" % (rank // 2))
        output.conclude(Outcome(0, None, 1.0))
        assert (folder / "out").read_text().splitlines() == [
            "[0-2] epoch 1", "[0-1] loss 0", "[2@h2] loss 1", "[0-2] epoch 2",
        ]  # fmt: skip
        log.flush()
        assert read_log(folder)[0].count(b"epoch 2") == 3


def test_tags_have_colours_on_terminals_alone() -> None:
    tags = RankTags(OutputStyle(), 3)
    tags.hosts[2] = "h2"
    assert tags.render((2,)) == b"[2@h2] "
    assert tags.render((2,), colour=True) == b"\x1b[35m[2@h2]\x1b[0m "
    assert RankTags(OutputStyle(many_colours=True), 3).render((1, 0), colour=True) == b"\x1b[38;5;208m[0-1]\x1b[0m "
