"""Shipped files: archives, the chain of hosts, environments, the folder on a host, and the user's own paths."""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlrun.application.inputs import reach
from ddlrun.application.options.ship import read_ship
from ddlrun.application.shipping import read_source
from ddlrun.errors import InputError, PreflightError
from ddlrun.keeper.shipped import OwnPaths, Places
from ddlrun.remote.agent import AgentLauncher
from ddlrun.remote.links import HostLinks
from ddlrun.remote.processes import FinishedProcess
from ddlrun.remote.tasks import TaskReply, as_scripts
from ddlrun.ship.archive import Archive, find_archive, make_archive, note_archive
from ddlrun.ship.environment import find_editable, find_environment, find_interpreter, read_environment
from ddlrun.ship.files import list_code, list_tree, read_entries
from ddlrun.ship.host.link import CLAIM, HERE, NO_ARCHIVE, RemoteEnd, Successors
from ddlrun.ship.host.main import ACTIONS, HostState
from ddlrun.ship.host.relay import Extraction, Forwarding, has_zstd, relay
from ddlrun.ship.host.store import DAY_SECONDS, Store, StoreError
from ddlrun.ship.host.unpack import FILE, FOLDER, ArchiveError, unpack
from ddlrun.ship.request import ShipRequest, ShipSource, SourceKind, arrange_sources, parse_ship
from ddlrun.ship.results import FetchTask, receive_results
from ddlrun.ship.server import COMPRESS, MODULE, ArchiveServer, Chain
from ddlrun.ship.transfer import TransferPlan, chain_order, judge, transfer
from ddlrun.wire.authentication import CODE_BYTES, HandshakeError, Secret
from tests.support.altering_proxy import Place, altering
from tests.support.waiting import wait_until

SECRET = Secret("sha256:" + "5e" * 32)


def claim(archive: Archive, port: int = 0) -> bytes:
    """Return the claim of the first host."""
    return CLAIM.pack(bytes.fromhex(archive.digest), 0, port)


def serve(archive: Archive, *, compressed: bool = False) -> ArchiveServer:
    """Start to send an archive to a host."""
    server = ArchiveServer(["127.0.0.1"], ["h1"], [Chain(archive, ["h1"], compressed)])
    server.start()
    return server


@contextmanager
def loopback(address: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Provide a connection."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.create_server((address, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]) as link,
    ):
        yield link


def archive_of(folder: Path, state: Path, kind: SourceKind = SourceKind.DATA) -> Archive:
    entries = read_entries(list_tree(str(folder)), str(folder), keep_times=False, read_only=FILE + FOLDER)
    return make_archive(ShipSource(kind, str(folder)), entries, str(state))


@pytest.fixture(autouse=True)
def unpacked(tmp_path: Path) -> Iterator[None]:
    """Let pytest remove what archives were unpacked to: folders that nobody but root can change."""
    yield
    for folder, _, _ in os.walk(tmp_path):
        Path(folder).chmod(0o755)


def write_tree(folder: Path) -> Path:
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "a.txt").write_text("one")
    (folder / "sub" / "large").write_bytes(os.urandom(700_000))
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "inside").symlink_to(folder / "sub" / "large")
    (folder / "outside").symlink_to("/nowhere")
    return folder


def test_an_archive_becomes_the_same_files(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree")
    archive = archive_of(tree, tmp_path / "state")
    content = b"".join(archive.blocks())
    assert len(content) == archive.size
    unpack(io.BytesIO(content), str(tmp_path / "out"), "")
    copy = Path(f"{tmp_path}/out{tree}")
    assert (copy / "a.txt").read_text() == "one"
    assert (copy / "inside").read_bytes() == (tree / "sub" / "large").read_bytes()
    assert os.readlink(copy / "inside") == "sub/large"
    assert os.readlink(copy / "outside") == "/nowhere"
    assert (copy / "sub" / "empty").is_dir()
    assert [(copy / name).stat().st_mode & 0o777 for name in ("run.sh", "sub")] == [0o555, 0o555]


def test_the_hash_of_an_archive_depends_on_contents_and_not_on_times(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree")
    for path in tree.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    first = archive_of(tree, tmp_path / "state")
    assert len(json.loads((tmp_path / "state" / "archives.json").read_text())) == 1
    os.utime(tree / "a.txt", (2, 2))
    assert archive_of(tree, tmp_path / "state").digest == first.digest
    (tree / "a.txt").write_text("two")
    assert archive_of(tree, tmp_path / "state").digest != first.digest


def test_an_archive_that_is_used_stays_in_the_index(tmp_path: Path) -> None:
    archive = archive_of(write_tree(tmp_path / "tree"), tmp_path / "state")
    for number in range(200):
        note_archive(archive, f"fingerprint {number}", str(tmp_path / "state"))
        assert find_archive(archive.source, "fingerprint 0", str(tmp_path / "state")) is not None
    assert find_archive(archive.source, "fingerprint 1", str(tmp_path / "state")) is None


def test_a_file_that_became_shorter_ends_the_transfer(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree")
    archive = archive_of(tree, tmp_path / "state")
    (tree / "a.txt").write_text("")
    with pytest.raises(PreflightError, match=r"a\.txt became shorter"):
        list(archive.blocks())


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", ""])
def test_no_archive_is_extracted_outside_its_folder(tmp_path: Path, path: str) -> None:
    manifest = json.dumps([("f", path, 0o644, 0, 1, "", None)]).encode()
    with pytest.raises(ArchiveError, match="it contains the path"):
        unpack(io.BytesIO(len(manifest).to_bytes(8, "big") + manifest + b"x"), str(tmp_path / "out"), "")


def test_an_archive_that_ends_early_is_refused(tmp_path: Path) -> None:
    content = b"".join(archive_of(write_tree(tmp_path / "tree"), tmp_path).blocks())
    with pytest.raises(ArchiveError, match="it ends too early"):
        unpack(io.BytesIO(content[:-1]), str(tmp_path / "out"), "")


def test_code_is_what_git_does_not_ignore(tmp_path: Path) -> None:
    for name in ("train.py", "new.py", "big.bin", ".venv/bin/python", "inner/part.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".venv" / "pyvenv.cfg").touch()
    everything = {str(tmp_path / name) for name in ("train.py", "new.py", "big.bin", "inner/part.py")}
    assert set(list_code(str(tmp_path))) == everything
    (tmp_path / ".gitignore").write_text("*.bin\n.venv\n")
    for folder in (tmp_path, tmp_path / "inner"):
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    assert set(list_code(str(tmp_path))) == {*everything, str(tmp_path / ".gitignore")} - {str(tmp_path / "big.bin")}


def test_code_has_names_in_any_encoding_but_no_results_that_come_back(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    names = [b"caf\xe9.py", "caf\u00e9.py".encode()]
    for name in (*names, b".ddlrun-fetch-ab12/0/1"):
        path = tree / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name)
    everything = {str(tree / os.fsdecode(name)) for name in names}
    assert set(list_code(str(tree))) == everything
    subprocess.run(["git", "init", "--quiet", str(tree)], check=True)
    assert set(list_code(str(tree))) == everything
    entries = read_entries(list_code(str(tree)), str(tree), keep_times=False, read_only=FILE + FOLDER)
    archive = make_archive(ShipSource(SourceKind.CODE, str(tree)), entries, str(tmp_path / "state"))
    unpack(io.BytesIO(b"".join(archive.blocks())), str(tmp_path / "out"), "")
    assert (Path(f"{tmp_path}/out{tree}") / os.fsdecode(names[0])).read_bytes() == names[0]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(17):  # a path of more than 4096 bytes
        os.mkdir("d" * 250, dir_fd=folder)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    with pytest.raises(InputError, match=r"^--ship: .*/d+: File name too long$"):
        list_code(str(tmp_path))


def test_a_file_that_has_just_been_removed_does_not_travel(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    paths = [*list_code(str(tmp_path)), str(tmp_path / "gone" / "file")]
    entries = read_entries(paths, str(tmp_path), keep_times=False, read_only=FILE + FOLDER)
    assert [entry.path for entry in entries] == [str(tmp_path), str(tmp_path / "kept")]
    with pytest.raises(InputError, match="gone: No such file"):
        read_entries(
            list_tree(str(tmp_path / "gone")), str(tmp_path / "gone"), keep_times=False, read_only=FILE + FOLDER
        )


def test_an_archive_passes_through_two_hosts(tmp_path: Path) -> None:
    archive = archive_of(write_tree(tmp_path / "tree"), tmp_path)
    with loopback() as link:
        successors = [Successors(link, SECRET) for _ in range(2)]
    out = [tmp_path / name for name in ("first", "second")]

    def take(place: int, *, forward: bool) -> None:
        link, _ = RemoteEnd(["127.0.0.1"], successors[place].port, SECRET).open(claim(archive))
        extraction = Extraction(str(out[place]), archive.digest, place="")
        forwarding = Forwarding(successors[1], archive.digest) if forward else None
        relay(link.blocks(archive.size), extraction, forwarding)
        link.close()

    threads = [threading.Thread(target=take, args=(0,), kwargs={"forward": True})]
    threads.append(threading.Thread(target=take, args=(1,), kwargs={"forward": False}))
    for thread in threads:
        thread.start()
    with closing(successors[0].take(archive.digest)) as first:
        first.send(HERE)
        for block in archive.blocks():
            first.socket.sendall(block)
    for thread in threads:
        thread.join()
    for server in successors:
        server.close()
    assert [Path(f"{folder}{tmp_path}/tree/a.txt").read_text() for folder in out] == ["one", "one"]


@pytest.mark.parametrize("byte", [0, 7, 9, 40, -1], ids=["length", "shorter", "kind", "path", "content"])
def test_an_altered_archive_is_refused(tmp_path: Path, byte: int) -> None:
    archive = archive_of(write_tree(tmp_path / "tree"), tmp_path)
    content = bytearray(b"".join(archive.blocks()))
    content[byte] ^= 1
    with pytest.raises(ArchiveError, match="altered on the way"):
        relay([bytes(content)], Extraction(str(tmp_path / "out"), archive.digest, place=""), None)


@pytest.mark.parametrize(
    ("to_server", "byte"),
    [
        pytest.param(True, 3, id="nonce"),
        pytest.param(True, 20, id="claim"),
        pytest.param(False, 3, id="nonce-of-ddlrun"),
        pytest.param(False, 20, id="proof-of-ddlrun"),
        pytest.param(True, 75, id="proof"),
        pytest.param(False, 35, id="length-of-the-reply"),
        pytest.param(False, 54, id="reply"),
    ],
)
def test_a_message_of_a_host_that_a_proxy_alters_is_repeated(tmp_path: Path, byte: int, *, to_server: bool) -> None:
    archive = archive_of(write_tree(tmp_path / "tree"), tmp_path)
    server = serve(archive)
    source = {"digest": archive.digest, "path": archive.source.path, "whole": True, "space": archive.space}
    task = {
        "folder": str(tmp_path / "cache"), "run": "run", "working_folder": "/work", "fetched": [], "sources": [source],
        **server.describe("h1"),
    }  # fmt: skip
    with altering(Place(to_server, byte, 1), lambda: server.port) as proxy:
        report = ACTIONS["receive"]({**task, "port": proxy.port})
    server.close()
    assert (proxy.altered, report) == (True, {})
    assert Path(f"{tmp_path}/cache/objects/{archive.digest}{tmp_path}/tree/a.txt").read_text() == "one"


def test_each_host_is_told_the_one_before_it(tmp_path: Path) -> None:
    archive = archive_of(write_tree(tmp_path / "tree"), tmp_path)
    server = ArchiveServer([], ["h1", "h2"], [Chain(archive, ["h2", "h1"])])
    server.start()
    end = RemoteEnd(["127.0.0.1"], server.port, server.secret)
    claims = [CLAIM.pack(bytes.fromhex(archive.digest), number, 7000 + number) for number in range(2)]
    with ThreadPoolExecutor() as pool:
        later = pool.submit(end.open, claims[0])
        first, reply = end.open(claims[1])
        second, before = later.result()
        again, reply_again = end.open(claims[0])
    for link in (first, second, again):
        link.close()
    server.close()
    assert (reply, before, reply_again) == (None, ["127.0.0.1", 7001], None)


def test_a_host_is_served_if_the_one_before_it_does_not_come(tmp_path: Path) -> None:
    archive = archive_of(write_tree(tmp_path / "tree"), tmp_path)
    server = ArchiveServer([], ["h1", "h2"], [Chain(archive, ["h2", "h1"])], patience=0.0)
    server.start()
    link, _ = RemoteEnd(["127.0.0.1"], server.port, server.secret).open(claim(archive))
    with closing(link):
        assert b"".join(link.blocks(archive.size)) == b"".join(archive.blocks())
    server.close()


@pytest.mark.skipif(not has_zstd(), reason="no zstd: sudo apt-get install zstd")
def test_a_compressed_archive_arrives_or_is_refused(tmp_path: Path) -> None:
    archive = archive_of(write_tree(tmp_path / "tree"), tmp_path)

    def take(data: bytes, name: str) -> None:
        relay([data], Extraction(str(tmp_path / name), archive.digest, place="", compressed=True), None)

    data = subprocess.run(COMPRESS, input=b"".join(archive.blocks()), stdout=subprocess.PIPE, check=True).stdout
    take(data, "whole")
    assert Path(f"{tmp_path}/whole{tmp_path}/tree/a.txt").read_text() == "one"
    for number, wrong in enumerate((data[:-9], data[:100] + bytes([data[100] ^ 1]) + data[101:], b"", b"no zstd")):
        with pytest.raises(ArchiveError):
            take(wrong, f"wrong.{number}")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_transfer_ends_where_a_file_became_shorter(tmp_path: Path, *, compressed: bool) -> None:
    if compressed and not has_zstd():
        pytest.skip("no zstd: sudo apt-get install zstd")
    tree = write_tree(tmp_path / "tree")
    (tree / "zeros").write_bytes(bytes(8 << 20))
    archive = archive_of(tree, tmp_path)
    (tree / "a.txt").write_text("")
    server = serve(archive, compressed=compressed)
    link, _ = RemoteEnd(["127.0.0.1"], server.port, server.secret).open(claim(archive))
    with closing(link), pytest.raises(ArchiveError):
        relay(link.blocks(None), Extraction(str(tmp_path / "out"), archive.digest, place=""), None)
    server.close()
    assert "a.txt became shorter" in str(server.error)


def test_a_host_with_another_secret_is_not_served(tmp_path: Path) -> None:
    archive = archive_of(write_tree(tmp_path / "tree"), tmp_path)
    server = serve(archive)
    stranger = RemoteEnd(["127.0.0.1"], server.port, Secret("sha256:" + "00" * 32))
    for text in (CLAIM.pack(NO_ARCHIVE, 0, 0), claim(archive)):
        with pytest.raises(ConnectionError, match=r"closed|reset"):
            stranger.open(text)
    server.close()


def test_a_host_sends_nothing_to_another_program_in_place_of_ddlrun() -> None:
    received: list[bytes] = []

    def answer(listener: socket.socket) -> None:
        for _ in range(2):  # a host tries twice
            link, _ = listener.accept()
            with link:
                received.append(link.recv(1000))
                link.sendall(bytes(2 * CODE_BYTES))
                received.append(link.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        with pytest.raises(HandshakeError, match="another program answers"):
            RemoteEnd(["127.0.0.1"], listener.getsockname()[1], SECRET).open(CLAIM.pack(NO_ARCHIVE, 0, 0))
        thread.join()
    assert [len(data) for data in received] == [CODE_BYTES + CLAIM.size + CODE_BYTES, 0] * 2


PYTHONS = [Path(sys.executable), *sorted(Path.home().glob(".pyenv/versions/3.[89].*/bin/python"))]


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_files_travel_and_results_come_back_under_an_old_python(tmp_path: Path, python: Path) -> None:
    (write_tree(tmp_path / "tree") / "large").write_bytes(os.urandom(3 << 20))
    archive = archive_of(tmp_path / "tree", tmp_path)
    request = ShipRequest((archive.source,), str(tmp_path / "cache"), "/work", fetched=(".",))
    # As another host, so that it is compressed.
    plan = TransferPlan(request, [archive], ["localhost"], ["127.0.0.1"], 60.0, run_id="run")

    def run_here(module: str, task: Mapping[str, object]) -> Callable[[], TaskReply]:
        script = as_scripts({"localhost": json.dumps(task)}, module)["localhost"]
        script = script.replace(f"python={sys.executable}\n", f"python={python}\n")
        process = subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def finish() -> TaskReply:
            out, _ = process.communicate(script)
            return TaskReply.read(FinishedProcess(process.returncode, out, ""))

        return finish

    target = reach(HostLinks(AgentLauncher()))._replace(task_here=run_here)
    result = transfer(plan, lambda _seconds: target)
    folder = Path(f"{request.run_folder('run')}/work")
    (folder / "result").write_bytes(os.urandom(700_000))
    (tmp_path / "incoming").mkdir()
    task = FetchTask(request, "run", ["localhost"], ["127.0.0.1"], str(tmp_path / "incoming"))
    received = receive_results(task, target)
    # At this address nothing can listen here.
    again = transfer(replace(plan, run_id="again", addresses=["192.0.2.1"]), lambda _seconds: target)
    assert [[chain.hosts for chain in transferred.chains] for transferred in (result, again)] == [[["localhost"]], [[]]]
    assert Path(f"{request.run_folder('again')}{tmp_path}/tree/large").is_file()
    copy = Path(f"{request.run_folder('run')}{tmp_path}/tree/large")
    assert copy.read_bytes() == (tmp_path / "tree" / "large").read_bytes()
    (file,) = received.files
    assert Path(file.received).read_bytes() == (folder / "result").read_bytes()
    assert (file.path, received.problems, received.left) == ("result", {}, {"localhost": []})


# -- the folder on a host -------------------------------------------------------------------------


def put(store: Store, digest: str, source: Path, days: float = 0.0) -> None:
    folder = Path(store.incoming(digest))
    (folder / str(source)[1:]).mkdir(parents=True)
    (folder / str(source)[1:] / "file").write_text(digest)
    store.put(str(folder), digest)
    used = time.time() - days * DAY_SECONDS - 3600
    os.utime(store.object(digest), (used, used))


def test_a_run_has_links_to_what_is_shipped(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "cache"))
    project, data = tmp_path / "project", tmp_path / "project" / "data"
    put(store, "c0de", project)
    put(store, "da7a", data)
    sources = [
        {"path": str(project), "digest": "c0de", "whole": False}, {"path": str(data), "digest": "da7a", "whole": True},
    ]  # fmt: skip
    store.make_run("run", str(project / "work"), sources)
    place = Path(f"{store.run('run')}{project}")
    (place / "result").write_text("new")
    assert [(place / name).read_text() for name in ("file", "data/file")] == ["c0de", "da7a"]
    assert (place / "work").is_dir()
    assert not Path(f"{store.object('c0de')}{project}/result").exists()
    assert store.missing(["c0de", "none"]) == ["none"]


def test_the_second_of_two_runs_that_ship_the_same_keeps_the_first(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "cache"))
    put(store, "c0de", tmp_path)
    inode = os.stat(store.object("c0de")).st_ino
    put(store, "c0de", tmp_path)
    assert os.stat(store.object("c0de")).st_ino == inode
    assert os.listdir(f"{store.folder}/incoming") == []


def test_what_no_run_uses_is_removed_by_age_and_by_size(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "cache"))
    for digest, days in (("01d", 20.0), ("used", 20.0), ("b", 2.0), ("a", 3.0), ("new", 0.0)):
        put(store, digest, tmp_path, days)
    store.make_run("living", "/work", [{"path": "/data", "digest": "used", "whole": True}])
    sleeper = subprocess.Popen(["sleep", "300"], env={**os.environ, "DDLRUN_RUN": "living"})
    try:
        # The kernel shows the environment of a program a moment after Popen knows that it runs.
        wait_until(lambda: b"DDLRUN_RUN=living" in Path(f"/proc/{sleeper.pid}/environ").read_bytes())
        removed, _ = store.remove_old()
        assert (removed, sorted(os.listdir(f"{store.folder}/objects"))) == (1, ["a", "b", "new", "used"])
        removed, left = store.remove_old(most_bytes=8)  # the files have 1, 1, 3 and 4 bytes
        assert (removed, left) == (1, 8)
        assert sorted(os.listdir(f"{store.folder}/objects")) == ["b", "new", "used"]
        store.remove_old(0)
        assert os.listdir(f"{store.folder}/objects") == ["used"]
        assert os.path.isdir(store.run("living"))
    finally:
        sleeper.kill()
        sleeper.wait()
    store.remove_old(0)
    assert os.listdir(f"{store.folder}/runs") == []


NOBODY = 65534
REMOVAL = """
import os, sys
from ddlrun.ship.host.store import Store
os.setuid(int(sys.argv[2]))
store = Store(sys.argv[1])
print(store.remove_old(0), len(store.missing(["01d"])), *map(os.path.basename, store.stuck), sep="\\n")
"""


def test_old_files_of_another_user_stop_nothing_and_are_named() -> None:
    """Root in a container writes such files; a program may also make a folder that nobody can list."""
    if os.geteuid():
        pytest.skip("root alone makes files of another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        os.chown(above, NOBODY, NOBODY)
        store = Store(f"{above}/cache")
        put(store, "01d", Path("/work"), 20.0)
        for run in ("own", "other"):
            store.make_run(run, "/work", [])
            Path(f"{store.run(run)}/closed").mkdir()
            Path(f"{store.run(run)}/closed/result").touch()
        for parent, folders, names in os.walk(store.folder):
            for name in (".", *folders, *names):
                os.chown(f"{parent}/{name}", NOBODY, NOBODY)
        for path in (f"{store.run('other')}/closed", f"{store.object('01d')}/work"):
            os.chown(path, 0, 0)
        os.chmod(f"{store.run('own')}/closed", 0)
        argv = [sys.executable, "-c", REMOVAL, store.folder, str(NOBODY)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    removed, missing, *stuck = done.stdout.splitlines()
    assert (removed, missing) == ("(2, 0)", "1")
    assert [name.partition(".")[0] for name in stuck] == ["other", "01d-removed"]


def test_hosts_that_share_the_folder_make_a_run_at_the_same_time(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "cache"))
    names = [f"{number}/{name}" for number in range(40) for name in ("a", "b")]
    for name in names:
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text(name)
        (tmp_path / "code" / f"{name}.link").symlink_to("nowhere")
    incoming = store.incoming("c0de")
    shutil.copytree(tmp_path / "code", f"{incoming}/code", symlinks=True)
    store.put(incoming, "c0de")
    source = {"path": "/code", "digest": "c0de", "whole": False}
    with ThreadPoolExecutor(4) as hosts:
        for made in [hosts.submit(store.make_run, "run", "/code", [source]) for _ in range(4)]:
            made.result()
    assert store.shipped("run").keys() == {*names, *(f"{name}.link" for name in names)}


def test_containers_that_share_the_folder_may_have_equal_process_numbers(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "cache"))
    assert store.incoming("c0de") != store.incoming("c0de")


def test_shipped_code_can_be_removed_with_rm(tmp_path: Path) -> None:
    """Its files are read-only; only data has folders to which nobody can write, as runs link to them."""
    write_tree(tmp_path / "code")
    modes = {
        kind: {entry.mode & 0o222 for entry in read_source(source, [source]) if entry.kind == FOLDER}
        for kind in (SourceKind.CODE, SourceKind.DATA)
        for source in [ShipSource(kind, str(tmp_path / "code"))]
    }
    assert modes == {SourceKind.CODE: {0o200}, SourceKind.DATA: {0}}


def test_what_another_host_extracts_in_the_same_folder_stays(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "cache"))
    with subprocess.Popen(["true"]) as ended:
        pass
    own = os.path.basename(store.incoming("c0de"))
    gone = own.replace(f".{os.getpid()}", f".{ended.pid}")
    other = f"c0de.other.{ended.pid}"
    for name in (gone, other):
        os.mkdir(f"{store.folder}/incoming/{name}")
    store.remove_old()
    assert sorted(os.listdir(f"{store.folder}/incoming")) == sorted([own, other])


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("open", "link"):
        with pytest.raises(StoreError, match="this user alone"):
            Store(str(tmp_path / name))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_host_listens_where_others_see_it(address: str) -> None:
    with loopback(address) as link, closing(Successors(link, SECRET)) as successors:
        socket.create_connection((address, successors.port)).close()
        if address == "127.0.0.1":
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", successors.port))


def test_a_transfer_listens_on_the_addresses_that_hosts_use() -> None:
    server = ArchiveServer(["127.0.0.3"], ["h1"], [])
    server.start()
    for address in ("127.0.0.1", "127.0.0.3"):
        socket.create_connection((address, server.port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port))
    server.close()


# -- the way to hosts -----------------------------------------------------------------------------


def test_the_script_of_a_task_fits_into_an_argument() -> None:
    script = as_scripts({"h1": "{}"}, MODULE)["h1"]
    assert subprocess.run(["sh", "-c", f"exit 3\n{script}"], check=False).returncode == 3


@pytest.mark.parametrize(("heartbeat", "interval"), [(5.0, 1), (30.0, 6), (None, 24), (0.0, None)])
def test_a_host_that_is_cut_off_is_given_up_after_the_heartbeat(
    heartbeat: float | None, interval: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text('#!/bin/sh\necho "$@" >&2\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = reach(HostLinks(AgentLauncher(), heartbeat=heartbeat)).there({"h9": "true"})["h9"].err
    if interval is None:
        assert "ServerAlive" not in words
    else:
        assert f"-o ServerAliveInterval={interval} -o ServerAliveCountMax=5 " in words


# -- the request ----------------------------------------------------------------------------------


def test_a_source_inside_of_data_travels_with_it() -> None:
    data, inside = ShipSource(SourceKind.DATA, "/data"), ShipSource(SourceKind.DATA, "/data/a")
    code = ShipSource(SourceKind.CODE, "/code")
    assert arrange_sources([inside, data, code, data]) == (code, data)
    with pytest.raises(InputError, match="contains the environment"):
        arrange_sources([data, ShipSource(SourceKind.ENVIRONMENT, "/data/venv")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ship": "code,,x"}, "an element is empty"),
        ({"ship": "nothing"}, "nothing does not exist"),
        ({"ship": "code,."}, "contains the current folder"),
        ({"ship": "code", "encrypt": True}, "does not encrypt"),
        ({"ship": "code", "ship_dir": "cache"}, "write the whole path"),
        ({"ship_dir": "/cache"}, "--ship-dir has no effect without --ship; add --ship code"),
    ],
)
def test_wrong_options_are_refused(
    options: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        read_ship(options, ("python", "train.py"))


def test_the_home_folder_is_not_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="all of which would travel"):
        read_ship({"ship": "code"}, ("hostname",))


def test_code_is_that_around_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    request = read_ship({"ship": "code"}, ("/usr/bin/python3", "project/train.py"))
    assert request is not None
    assert request.sources == (ShipSource(SourceKind.CODE, str(tmp_path / "project")),)
    assert request.working_folder == str(tmp_path)


def test_words_of_a_command_line_name_the_shipped_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = (ShipSource(SourceKind.CODE, "/code"), ShipSource(SourceKind.ENVIRONMENT, "/venv"))
    request = ShipRequest(sources, str(tmp_path), "/code/sub", ("/code/src",))
    root = request.run_folder("run")
    Path(f"{root}/code/sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name, value in (("PATH", "/venv/bin:/bin"), ("PYTHONPATH", "/other"), ("VIRTUAL_ENV", ""), ("PWD", "")):
        monkeypatch.setenv(name, value)
    places = Places(request.variable("run"))
    places.enter()
    assert Path.cwd() == Path(f"{root}/code/sub")
    assert os.environ["PATH"] == f"{root}/venv/bin:/bin"
    assert os.environ["PYTHONPATH"] == f"{root}/code/src:/other"
    assert os.environ["VIRTUAL_ENV"] == f"{root}/venv"
    words = ["/venv/bin/python", "--data=/code/data", "/codes", "code", "-x", "/code"]
    placed = [f"{root}/venv/bin/python", f"--data={root}/code/data", "/codes", "code", "-x", f"{root}/code"]
    assert list(map(places.place, words)) == placed
    without_code = request._replace(sources=sources[1:])
    assert json.loads(without_code.variable("run"))["folder"] == "/code/sub"
    assert request.place("/venv/bin/python", "run") == f"{root}/venv/bin/python"


def test_an_environment_that_did_not_travel_is_that_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "code"
    for path in (code / ".venv/bin", code / "out"):
        path.mkdir(parents=True)
    (code / ".venv/bin/python").symlink_to(sys.executable)
    request = ShipRequest((ShipSource(SourceKind.CODE, str(code)),), str(tmp_path / "cache"), str(tmp_path / "work"))
    root = request.run_folder("run")
    Path(f"{root}{tmp_path}/work").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{code}/.venv/bin:{code}/bin")
    monkeypatch.setenv("PWD", "")
    places = Places(request.variable("run"))
    places.enter()
    assert os.environ["PATH"] == f"{code}/.venv/bin:{root}{code}/bin"
    words = [f"{code}/.venv/bin/python", f"{code}/train.py", f"--out={code}/out"]
    assert list(map(places.place, words)) == [words[0], f"{root}{code}/train.py", f"--out={root}{code}/out"]


@pytest.mark.parametrize("text", ["code,env", "/data/x", "code,data/"])
def test_the_list_of_ship_keeps_its_paths(text: str) -> None:
    _, _, paths = parse_ship(text)
    assert [path.rstrip("/") for path in text.split(",") if path not in ("code", "env")] == list(paths)


# -- the user's own paths -------------------------------------------------------------------------

CACHE = "/tmp/ddlrun-ship-0"  # noqa: S108 - a name
OUTPUT = (
    f'  File "{CACHE}/objects/ab12/home/me/train.py", line 3\n{CACHE} and {CACHE}/ and {CACHE}/runs\n'
    f"{CACHE}/runs/20261123-x.y_z/home/me {CACHE}/objects/12\n/tmp/ddlrun-other/tmp/"
).encode()
RESTORED = (
    f'  File "/home/me/train.py", line 3\n{CACHE} and {CACHE}/ and {CACHE}/runs\n'
    f"/home/me {CACHE}/objects/12\n/tmp/ddlrun-other/tmp/"
).encode()


@given(st.lists(st.integers(0, len(OUTPUT)), max_size=4))
def test_output_names_the_users_own_paths_wherever_it_is_split(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(OUTPUT)]
    paths = OwnPaths(CACHE)
    parts = [OUTPUT[start:end] for start, end in zip(bounds[:-1], bounds[1:], strict=True) if start < end]
    restored = b"".join([*(paths.restore(part) for part in parts), paths.restore(b"")])
    short = any(OUTPUT[:cut].endswith((b"/", b"/t", b"/tm", b"/tmp", b"/tmp/")) for cut in cuts)
    assert restored == RESTORED or short


def test_a_prompt_is_not_held_back() -> None:
    assert OwnPaths(CACHE).restore(b"folder [/tmp/]: ") == b"folder [/tmp/]: "
    assert OwnPaths(CACHE).restore(b"/tmp/") == b"/tmp/"


# -- chains and checks ----------------------------------------------------------------------------


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.data())
def test_a_chain_enters_each_rack_once(racks: list[int], data: st.DataObject) -> None:
    hosts = [f"h{number}" for number in range(len(racks))]
    of_host = dict(zip(hosts, racks, strict=True))
    first = data.draw(st.sampled_from(hosts))
    chain = chain_order(hosts, of_host, first)
    assert sorted(chain) == sorted(hosts)
    assert chain[0] == first
    before = [None, *(of_host[host] for host in chain)]
    entries = [host for host, rack in zip(chain, before, strict=False) if rack != of_host[host]]
    assert len(entries) == len(set(racks))


def state(**values: object) -> HostState:
    usual = HostState(free=1 << 30, version=(3, 11), glibc=(99, 0))
    return usual._replace(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, None),
        ({"free": 10, "missing": ("DIGEST",)}, "has 10 B free, and the files need"),
        ({"version": ()}, "no /usr/bin/python3, on which"),
        ({"version": (3, 12)}, "is Python 3.12, here 3.11"),
        ({"glibc": (1, 0)}, "glibc 1.0 is older than"),
    ],
)
def test_hosts_that_cannot_take_the_files_are_named(
    values: dict[str, object], problem: str | None, tmp_path: Path
) -> None:
    archive = replace(archive_of(write_tree(tmp_path / "tree"), tmp_path), digest="DIGEST")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.2\n")
    interpreter = find_interpreter(str(tmp_path / "venv"))
    environment = ShipSource(SourceKind.ENVIRONMENT, str(tmp_path / "venv"))
    request = ShipRequest((environment,), "/cache", "/")
    plan = TransferPlan(request, [archive], ["h1"], [], 1.0, interpreter=interpreter)
    problems = judge({"h1": state(**values)}, plan)
    assert bool(problems) == (problem is not None)
    assert problem is None or problem in problems[0]


# -- environments ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a virtual environment with a console script and two editable packages."""
    folder = tmp_path_factory.mktemp("environment")
    path = folder / "venv"
    subprocess.run(["python3", "-m", "venv", "--without-pip", str(path)], check=True)
    (path / "bin" / "tool").write_text(f"#!{path}/bin/python3\nimport sys\nprint(sys.prefix)\n")
    (path / "bin" / "tool").chmod(0o755)
    site = next(path.glob("lib/python3*/site-packages"))
    for name in ("one/src", "two/pkg"):
        (folder / name).mkdir(parents=True)
    (site / "one.pth").write_text(f"{folder}/one/src\nimport sys\n{path}/lib\n")
    mapping = {"pkg": f"{folder}/two/pkg"}
    (site / "__editable___two_finder.py").write_text(f"MAPPING: dict[str, str] = {mapping}\n")
    return path


def test_an_environment_works_in_another_folder(venv: Path, tmp_path: Path) -> None:
    assert find_environment(f"{venv}/bin/python") == str(venv)
    interpreter = find_interpreter(str(venv))
    assert interpreter is not None
    assert os.path.exists(interpreter.path)
    source = ShipSource(SourceKind.ENVIRONMENT, str(venv))
    archive = make_archive(source, read_environment(str(venv)), str(tmp_path))
    unpack(io.BytesIO(b"".join(archive.blocks())), str(tmp_path / "out"), "")
    moved = f"{tmp_path}/out{venv}"
    done = subprocess.run([f"{moved}/bin/tool"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{moved}\n"


def test_editable_packages_are_found(venv: Path) -> None:
    assert find_editable(str(venv)) == [f"{venv.parent}/one/src", f"{venv.parent}/two"]


def test_a_python_outside_of_an_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="of no environment that can travel"):
        find_environment(f"{tmp_path}/bin/python")
