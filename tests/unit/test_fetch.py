"""Results that come back from hosts: what is sent, what is refused, and where files are put."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddlrun.application.fetching import remove_interrupted, render_fetched, render_left
from ddlrun.application.options.ship import read_ship
from ddlrun.errors import InputError
from ddlrun.remote.processes import start_command
from ddlrun.ship.host.link import CLAIM, FILES, NO_ARCHIVE, HostLink, RemoteEnd
from ddlrun.ship.host.results import CACHE, End, Results, Row, is_left_out, list_results, send_results
from ddlrun.ship.host.store import Store
from ddlrun.ship.placing import Placing, PlacingError, ResultPlacer
from ddlrun.ship.request import ShipRequest
from ddlrun.ship.results import FetchTask, Received, ResultFile, ResultServer, check_rows
from ddlrun.ship.server import read
from ddlrun.wire.frames import FrameError
from tests.support.altering_proxy import Place, altering
from tests.support.waiting import wait_until

LATER = time.time() + 3600.0
CLOSED = r"closed the connection|reset by peer"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# -- what a host sends ----------------------------------------------------------------------------


def test_new_files_are_sent_but_no_links_and_no_caches(tmp_path: Path) -> None:
    for name in ("out/a", "out/deep/b", "x.csv", "other", "out/__pycache__/c.pyc", ".git/hooks/post-checkout"):
        write(tmp_path / name, name)
    (tmp_path / "out/shipped").symlink_to("/etc/passwd")
    (tmp_path / "linked").symlink_to("out")
    os.mkfifo(tmp_path / "out/pipe")
    results = list_results(str(tmp_path), ["out", "*.csv", "linked"])
    assert sorted(path for path, *_ in results.rows) == ["out/a", "out/deep/b", "x.csv"]
    assert results.left == [
        (".git", "folder of git"), ("linked", "symbolic link"), ("out/pipe", "no regular file"),
        ("out/shipped", "symbolic link"),
    ]  # fmt: skip
    everything = list_results(str(tmp_path), ["."])
    assert (len(everything.rows), everything.left) == (4, results.left)


def test_shipped_code_that_is_fetched_may_be_changed(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "cache"))
    folder = Path(store.incoming("c0de"))
    for name in ("train.py", "work/log.csv", "work/other.csv", "work/fixed"):
        write(Path(f"{folder}/project/{name}"), "shipped\n").chmod(0o444)
    store.put(str(folder), "c0de")
    store.make_run("run", "/project/work", [{"path": "/project", "digest": "c0de", "whole": False}], ["*.csv"])
    run = Path(f"{store.run('run')}/project/work")
    assert list_results(str(run), ["."], store.shipped("run")) == ([], [], [])
    with open(run / "log.csv", "a") as log:
        log.write("more\n")
    assert [row[0] for row in list_results(str(run), ["*.csv"], store.shipped("run")).rows] == ["log.csv"]
    assert (run / "log.csv").read_text() == "shipped\nmore\n"
    assert Path(f"{store.object('c0de')}/project/work/log.csv").read_text() == "shipped\n"


def test_small_code_may_be_changed_and_large_only_where_it_is_fetched(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "cache"))
    folder = Path(store.incoming("c0de"))
    for name in ("out/r0.txt", "out/large", "large"):
        path = write(Path(f"{folder}/code/{name}"), "x" * ((1 << 20) + 1 if "large" in name else 1))
        path.chmod(0o444)
    Path(f"{folder}/code/latest").symlink_to("out/r0.txt")
    store.put(str(folder), "c0de")
    store.make_run("run", "/code", [{"path": "/code", "digest": "c0de", "whole": False}], ["out"])
    run = Path(f"{store.run('run')}/code")
    (run / "latest").write_text("changed")
    assert Path(f"{store.object('c0de')}/code/out/r0.txt").read_text() == "x"
    assert [(run / name).is_symlink() for name in ("out/large", "large")] == [False, True]
    assert os.stat(run / "out/large").st_mode & 0o777 == 0o644
    results = list_results(str(run), ["."], store.shipped("run"))
    assert ([row[0] for row in results.rows], results.left) == (["out/r0.txt"], [])


def test_results_with_the_time_of_shipped_files_come_back(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "cache"))
    folder = Path(store.incoming("c0de"))
    for name in ("work/log.csv", "work/other.csv", "work/fixed"):
        os.utime(write(Path(f"{folder}/project/{name}"), "shipped\n"), (0, 0))
    store.put(str(folder), "c0de")
    store.make_run("run", "/project/work", [{"path": "/project", "digest": "c0de", "whole": False}], ["*.csv", "out"])
    run = Path(f"{store.run('run')}/project/work")
    made = os.stat(run / "log.csv").st_ctime_ns
    (run / "out").mkdir()
    shutil.copy2(run / "fixed", run / "out/new")
    while os.stat(run / "log.csv").st_ctime_ns == made:  # the clock of the file system has ticks of some ms
        shutil.copy2(run / "fixed", run / "log.csv")
    rows, problems, left = list_results(str(run), ["*.csv", "out"], store.shipped("run"))
    assert ([row[:1] + row[2:3] for row in rows], problems, left) == ([("log.csv", 0), ("out/new", 0)], [], [])
    store.remove_old(0)
    assert os.listdir(f"{store.folder}/runs") == []


def test_what_cannot_be_read_is_named_with_its_reason(tmp_path: Path) -> None:
    write(tmp_path / "work/out/fine", "")
    (tmp_path / "work/out/loop").symlink_to("loop")
    deep = os.open(tmp_path / "work/out", os.O_RDONLY)
    for name in (*"d" * 1000, *["e" * 250] * 20):
        os.mkdir(name, dir_fd=deep)
        above, deep = deep, os.open(name, os.O_RDONLY, dir_fd=deep)
        os.close(above)
    os.close(deep)
    rows, problems, left = list_results(str(tmp_path / "work"), ["out"])
    nothing = list_results(str(tmp_path / "work"), ["fine"])
    subprocess.run(["rm", "-r", str(tmp_path / "work")], check=True)  # which Python itself cannot remove
    ((path, reason),) = problems
    assert (nothing, left) == (([], [], []), [("out/loop", "symbolic link")])
    assert ([row[0] for row in rows], reason) == (["out/fine"], "File name too long")
    assert path.startswith("out/d/d/")
    assert list_results(str(tmp_path / "gone"), ["out"]) == ([], [(".", "No such file or directory")], [])


Send = Callable[[HostLink, str, Results], End | None]


class Exchange:
    """A host that sends the files of its folder to a server."""

    def __init__(self, folder: Path) -> None:
        """Start the server."""
        self.host, self.here = folder / "host", folder / "here"
        self.problems: list[tuple[str, str]] = []
        self.here.mkdir()
        request = ShipRequest((), "/cache", "/work", fetched=(".",))
        self.server = ResultServer(FetchTask(request, "run", ["h1"], [], str(self.here)))
        self.server.start()

    def send(self, send: Send = send_results, *, port: int = 0, number: int = 0) -> dict[str, object]:
        """Send all files of the host, by way of a port if there is one; return its report."""
        results = list_results(str(self.host), ["."])
        results.unreadable.extend(self.problems)
        launcher = RemoteEnd(["127.0.0.1"], port or self.server.port, self.server.secret)
        try:
            link, _ = launcher.open(CLAIM.pack(NO_ARCHIVE, number, 0))
            with closing(link):
                return json.loads(json.dumps({"end": send(link, str(self.host), results)}))  # type: ignore[no-any-return]
        except (FrameError, OSError) as error:
            return {"error": str(error)}

    def run(self, send: Send = send_results, *, port: int = 0) -> Received:
        """Send all files, close the server, and return what has come."""
        report = self.send(send, port=port)
        self.server.close()
        return self.server.conclude({"h1": report})


def test_files_arrive_with_their_contents_times_and_modes(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    content = os.urandom(700_000)
    write(exchange.host / "out/run.sh", "").write_bytes(content)
    (exchange.host / "out/run.sh").chmod(0o4755)
    os.utime(exchange.host / "out/run.sh", ns=(5, 1_700_000_000_000_000_007))
    (file,) = exchange.run().files
    status = os.stat(file.received)
    assert (file.path, Path(file.received).read_bytes()) == ("out/run.sh", content)
    assert (status.st_mode & 0o7777, status.st_mtime_ns) == (0o755, 1_700_000_000_000_000_007)


@pytest.mark.parametrize("mtime", [-5, 1 << 62])
def test_a_file_with_a_time_before_1970_or_far_ahead_comes_back(mtime: int, tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    os.utime(write(exchange.host / "old", "content"), ns=(mtime * 2, mtime * 2))
    (file,) = exchange.run().files
    assert (Path(file.received).read_text(), os.stat(file.received).st_mtime_ns) == ("content", max(0, mtime))


def test_a_file_that_vanishes_or_shrinks_is_named_and_the_others_come_back(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    for name in ("a", "gone", "short\n", "z"):
        write(exchange.host / name, "content")

    def send(link: HostLink, folder: str, results: Results) -> End:
        (exchange.host / "gone").unlink()
        os.truncate(exchange.host / "short\n", 3)
        return send_results(link, folder, results)

    exchange.problems = [("x\nddlrun: error: forged", "Permission\ndenied")]
    received = exchange.run(send)
    assert [(file.path, Path(file.received).read_text()) for file in received.files] == [
        ("a", "content"), ("z", "content"),
    ]  # fmt: skip
    assert received.problems == {
        "h1": [
            "'x\\nddlrun: error: forged': Permission\\ndenied",
            "'gone': it became shorter while it was read",
            "'short\\n': it became shorter while it was read",
        ]
    }


NAMES = st.one_of(
    st.sampled_from([".git", ".GIT", ".gitignore", "__pycache__", "__PyCache__", "a", "A", "~", "*", "[a]", "-"]),
    st.text(st.sampled_from("\u00e9\u0301\u212b\u0130\udcff\n\t\r\\\"' .\x1b\u202e\U0001f600"), min_size=1, max_size=4),
).filter(lambda name: name not in (".", ".."))
KINDS = st.sampled_from(["file", "file", "link", "pipe"])


@settings(max_examples=60)
@given(st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), KINDS, max_size=8))
def test_every_file_comes_back_or_is_named(entries: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        exchange = Exchange(Path(folder))
        exchange.host.mkdir()
        made = {path: kind for path, kind in entries.items() if make_entry(f"{exchange.host}/{path}", kind)}
        received = exchange.run()
        named = received.left["h1"]
        came = {file.path: Path(file.received).read_text() for file in received.files}
        assert received.problems == {}
    for path, kind in made.items():
        parts = path.split("/")
        out = [place for place, name in enumerate(parts) if is_left_out(name)]
        if out and parts[out[0]] != CACHE:
            assert f"{'/'.join(parts[: out[0] + 1])!a}: folder of git" in named
        elif not out and kind == "file":
            assert came.pop(path) == path.encode(errors="surrogateescape").hex()
        elif not out:
            assert any(line.startswith(f"{path!a}: ") for line in named)
    assert came == {}


def make_entry(path: str, kind: str) -> bool:
    """Make a file, link or pipe; return False where another entry is in the way."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if kind == "file":
            with open(path, "x") as file:
                file.write(os.fsencode(path.partition("/host/")[2]).hex())
        else:
            {"link": lambda: os.symlink("/dev/null", path), "pipe": lambda: os.mkfifo(path)}[kind]()
    except (FileExistsError, NotADirectoryError):
        return False
    return True


def test_of_very_many_links_the_first_are_named(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    exchange.host.mkdir()
    for number in range(25):
        (exchange.host / f"{number:02}").symlink_to("/")
    assert exchange.run().left["h1"][-2:] == ["'19': symbolic link", "'...': 5 more"]


def test_a_host_that_is_none_of_the_job_is_not_heard(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    write(exchange.host / "a", "a")
    assert re.search(CLOSED, str(exchange.send(number=1)["error"]))
    exchange.server.close()
    assert [*exchange.here.iterdir()] == []


def send_altered(link: HostLink, folder: str, results: Results) -> End:
    """Send files whose contents are others than the hash has."""

    class Altered(HostLink):
        def __init__(self) -> None:
            vars(self).update(vars(link))
            self.socket = self  # type: ignore[assignment]

        def sendall(self, block: bytes) -> None:
            link.socket.sendall(block.replace(b"content", b"changed"))

        def recv(self, most: int) -> bytes:
            return link.socket.recv(most)

    return send_results(Altered(), folder, results)


def test_files_that_were_altered_on_the_way_are_refused(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    write(exchange.host / "a", "content")
    received = exchange.run(send_altered)
    assert (received.files, received.problems) == ([], {"h1": ["its files were altered on the way"]})


@pytest.mark.parametrize(
    ("to_server", "byte", "arrives"),
    [
        pytest.param(True, 0, True, id="nonce"),
        pytest.param(True, 20, True, id="claim"),
        pytest.param(False, 0, True, id="nonce-of-ddlrun"),
        pytest.param(False, 31, True, id="proof-of-ddlrun"),
        pytest.param(True, 70, True, id="proof"),
        pytest.param(False, 35, True, id="length-of-the-reply"),
        pytest.param(False, 54, True, id="reply"),
        pytest.param(True, 89, False, id="length-of-the-list"),
        pytest.param(True, 110, False, id="list"),
        pytest.param(True, 162, False, id="content"),
    ],
)
def test_a_byte_that_a_proxy_alters_is_noticed_at_once(
    tmp_path: Path, byte: int, *, to_server: bool, arrives: bool
) -> None:
    exchange = Exchange(tmp_path)
    write(exchange.host / "a", "content")
    with altering(Place(to_server, byte), lambda: exchange.server.port) as proxy:
        result = exchange.run(port=proxy.port)
    received = [(file.path, Path(file.received).read_text()) for file in result.files]
    assert (proxy.altered, received) == (True, [("a", "content")] if arrives else [])
    assert arrives == (result.problems == {})


def test_files_that_do_not_fit_on_the_disk_are_refused(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)

    def send_too_much(link: HostLink, folder: str, results: Results) -> End:
        return send_results(link, folder, results._replace(rows=[Row("a", 0o644, 0, 1 << 60)]))

    (problem,) = exchange.run(send_too_much).problems["h1"]
    assert "and here are" in problem


def test_a_host_whose_connection_breaks_is_heard_again(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    write(exchange.host / "a", "content")

    def send_nothing(link: HostLink, folder: str, results: Results) -> None:  # noqa: ARG001 - as send_results
        wait_until(lambda: [*exchange.here.iterdir()])

    exchange.send(send_nothing)
    wait_until(lambda: not [*exchange.here.iterdir()])
    assert [Path(file.received).read_text() for file in exchange.run().files] == ["content"]


def test_a_server_that_is_closed_ends_a_transfer(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path)
    write(exchange.host / "a", "content")

    def send_half(link: HostLink, folder: str, results: Results) -> None:  # noqa: ARG001 - as send_results
        link.send(FILES, results.rows)
        ending.start()
        assert [*link.blocks(None)] == []

    ending = threading.Thread(target=exchange.server.close)
    report = exchange.send(send_half)
    ending.join()
    assert exchange.server.conclude({"h1": report}).files == []


@pytest.mark.parametrize(
    "row",
    [
        ["../x", 0, 0, 1], ["/etc/x", 0, 0, 1], ["out/../../x", 0, 0, 1], ["out//x", 0, 0, 1], ["", 0, 0, 1],
        ["out/./x", 0, 0, 1], ["out/\0", 0, 0, 1], ["out/.git/hooks/x", 0, 0, 1], ["out/.GIT/config", 0, 0, 1],
        ["train.py", 0, 0, 1], ["out/" + "x" * 5000, 0, 0, 1], ["out/\ud800", 0, 0, 1], ["out/x", 0, 0, -1],
        ["out/x", 0, -1, 1], ["out/x", 0, 0, 1 << 63], ["out/x", 0, 0, True], ["out/x", 0, 0, "1"], ["out/x", 0, 0],
        [7, 0, 0, 1], 7,
    ],
)  # fmt: skip
def test_what_no_ddlrun_sends_is_refused(row: object) -> None:
    with pytest.raises(FrameError):
        check_rows(read([["out/fine", 0o644, 0, 1], row], tuple[Row, ...]), ["out"])


@pytest.mark.parametrize("value", [None, {}, 7, [[["out/x"]]], [["out/x", 0, 0, 1], ["out/x", 0, 0, 1]]])
def test_a_list_of_files_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(FrameError, match=r"its list of files|that cannot be read"):
        check_rows(read(value, tuple[Row, ...]), ["out"])


# -- where files are put --------------------------------------------------------------------------


class Working:
    """A working folder, and files that have come from hosts."""

    def __init__(self, folder: Path) -> None:
        """Make the folders."""
        self.folder, self._incoming = folder / "work", folder / "incoming"
        self.folder.mkdir()
        self._incoming.mkdir()

    def receive(self, host: str, path: str, text: str) -> ResultFile:
        """Return a file that has come."""
        received = self._incoming / str(len(list(self._incoming.iterdir())))
        received.write_text(text)
        return ResultFile(host, path, len(text), str(received))

    def names(self) -> dict[str, str]:
        """Return the contents of all files, by their names."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): path.read_text() for path in files}


@pytest.fixture
def working(tmp_path: Path) -> Working:
    """Provide a working folder."""
    return Working(tmp_path)


def test_the_first_host_has_the_name_that_two_have_written(working: Working) -> None:
    placer = ResultPlacer(str(working.folder), LATER)
    texts = {"h1": "one", "h2": "two", "h3": "one"}
    placed = [placer.place(working.receive(host, "out/log.txt", text)) for host, text in texts.items()]
    assert [file.placing for file in placed] == [Placing.NEW, Placing.NEW, Placing.SAME]
    assert working.names() == {"out/log.txt": "one", "out/log.h2.txt": "two"}
    lines = render_fetched(placed, ShipRequest((), "", "", fetched=("out", "no")), {"h1": [0], "h2": [1, 2]})
    assert list(lines) == [
        "--fetch: no rank has written 'no'",
        "fetched out/log.txt (3 B) from h1 (rank 0); the same on h3",
        "fetched out/log.h2.txt (3 B) from h2 (ranks 1-2); out/log.txt is h1's",
    ]


def test_a_file_from_before_the_run_is_kept_under_another_name(working: Working) -> None:
    write(working.folder / "log", "former")
    placed = ResultPlacer(str(working.folder), LATER).place(working.receive("h1", "log", "new"))
    assert (placed.placing, working.names()) == (Placing.REPLACED, {"log": "new", "log~": "former"})
    again = ResultPlacer(str(working.folder), LATER).place(working.receive("h1", "log", "newer"))  # after a restart
    assert (again.former, working.names()) == ("log~2", {"log": "newer", "log~": "former", "log~2": "new"})
    (line,) = render_fetched([again], ShipRequest((), "", ""), {"h1": [0]})
    assert line == "fetched log (5 B) from h1 (rank 0); the former one is log~2"


def test_no_name_of_a_file_forges_a_line(working: Working) -> None:
    name = "x\nddlrun: error: \x1b[31mforged"
    write(working.folder / name, "former")
    placed = [ResultPlacer(str(working.folder), LATER).place(working.receive(host, name, host)) for host in ("a", "b")]
    lines = list(render_fetched(placed, ShipRequest((), "", ""), {"a": [0], "b": [1]}))
    assert lines[0] == (
        r"fetched x\nddlrun: error: forged (1 B) from a (rank 0); the former one is x\nddlrun: error: forged~"
    )
    assert "\n" not in "".join(lines)


def test_nothing_is_called_unwritten_while_hosts_have_problems() -> None:
    request = ShipRequest((), "", "", fetched=("out",))
    assert list(render_fetched([], request, {}, complete=False)) == []
    assert list(render_fetched([], request, {})) == ["--fetch: no rank has written 'out'"]


def test_what_was_left_is_named_once_per_group_of_hosts() -> None:
    left = {"h1": ["'a': symbolic link", "'b': folder of git"], "h2": [], "h3": ["'a': symbolic link"]}
    left["h4"] = left["h1"]
    assert list(render_left(left)) == [
        "not fetched from h[1,4]: 'a': symbolic link; 'b': folder of git", "not fetched from h3: 'a': symbolic link",
    ]  # fmt: skip


def test_what_killed_transfers_have_left_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    names = [f".ddlrun-fetch-h-1-{process}-x" for process in (ended.pid, os.getpid(), "1-2")]
    for name in [*names, ".ddlrun-fetch-other-1-1-x"]:
        write(tmp_path / name / "0/1", "")
    remove_interrupted(str(tmp_path), ".ddlrun-fetch-h-1-")
    assert sorted(os.listdir(tmp_path)) == sorted([*names[1:], ".ddlrun-fetch-other-1-1-x"])


def test_a_report_that_nobody_reads_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = (
        "import os; from ddlrun.application.reporter import try_line; from ddlrun.cli.console import ConsoleReporter; "
        "try_line(ConsoleReporter(), 'x'); os._exit(7)"
    )
    assert subprocess.run([sys.executable, "-c", program], stderr=writer, check=False).returncode == 7
    os.close(writer)


class EndedError(BaseException):
    """The signal that ends the wait for a command."""


def test_a_signal_ends_the_wait_for_a_transfer(tmp_path: Path) -> None:
    def end(_: int, frame: FrameType | None) -> None:
        if any(call.name == "_wait" for call in traceback.extract_stack(frame)):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            raise EndedError

    former = signal.signal(signal.SIGALRM, end)
    try:
        finish = start_command(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 100"], timeout=200.0)
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        with pytest.raises(EndedError):
            finish()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_file_that_changed_during_the_run_stays(working: Working) -> None:
    write(working.folder / "log", "mine")
    os.utime(working.folder / "log", (1, 1))  # as after `cp -p`
    placer = ResultPlacer(str(working.folder), 0.0)
    placed = placer.place(working.receive("h1", "log", "new"))
    assert (placed.name, placed.other, working.names()) == ("log.h1", "", {"log": "mine", "log.h1": "new"})
    write(working.folder / "log.h2", "mine, too")
    with pytest.raises(PlacingError, match=r"it and log\.h2 have changed here during the run"):
        placer.place(working.receive("h2", "log", "newer"))
    assert working.names() == {"log": "mine", "log.h1": "new", "log.h2": "mine, too"}


def test_no_link_leads_a_file_out_of_the_folder(working: Working, tmp_path: Path) -> None:
    (working.folder / "out").symlink_to(tmp_path)
    (working.folder / "log").symlink_to(tmp_path / "elsewhere")
    write(working.folder / "file", "")
    placer = ResultPlacer(str(working.folder), LATER)
    with pytest.raises(PlacingError, match="a link in the current folder leads it to"):
        placer.place(working.receive("h1", "out/x", "new"))
    with pytest.raises(PlacingError, match="file/x: "):
        placer.place(working.receive("h1", "file/x", "new"))
    assert placer.place(working.receive("h1", "log", "new")).name == "log.h1"
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "x").exists()


def test_of_very_many_files_those_to_look_at_are_named(working: Working) -> None:
    write(working.folder / "7", "former")
    placer = ResultPlacer(str(working.folder), LATER)
    placed = [placer.place(working.receive("h1", str(number), "new")) for number in range(30)]
    lines = list(render_fetched(placed, ShipRequest((), "", "", fetched=(".",)), {"h1": [0]}))
    assert lines == [
        "fetched 30 files (90 B) from h1", "fetched 7 (3 B) from h1 (rank 0); the former one is 7~",
    ]  # fmt: skip


# -- the option -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fetch": "out"}, "--fetch has no effect without --ship; add --ship code"),
        ({"fetch": "out", "ship": "data"}, "without --ship code"),
        ({"fetch": "../out", "ship": "code"}, "'../out' is not a path in the current folder"),
        ({"fetch": "out,", "ship": "code"}, "'an empty element' is not a path"),
    ],
)
def test_wrong_paths_are_refused(
    options: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        read_ship(options, ("python", "train.py"))


def test_a_current_folder_that_cannot_take_results_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/proc/sys")  # where root cannot write either
    with pytest.raises(InputError, match="--fetch: /proc/sys is not writable, where results come back"):
        read_ship({"fetch": "out", "ship": "code"}, ("python", "train.py"))
