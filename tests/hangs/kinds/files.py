"""Hangs of one rank in files, sockets and other programs."""

import os
import select
import signal
import socket
import subprocess
import urllib.request

from tests.hangs.kinds.job import Job


def unwritten_fifo(job: Job) -> None:
    """a file that nobody provides, as on a dead file server (a FIFO)"""
    path = job.folder / "data"
    job.begin()
    if job.is_victim:
        os.mkfifo(path)
        path.read_bytes()  # guilty
    job.barrier()  # waiting


def silent_writer(job: Job) -> None:
    """a pipe whose writer is silent"""
    reader, _writer = os.pipe()
    job.begin()
    if job.is_victim:
        os.read(reader, job.size)  # guilty
    job.barrier()  # waiting


def full_pipe(job: Job) -> None:
    """a full pipe that nobody reads"""
    _reader, writer = os.pipe()
    job.begin()
    if job.is_victim:
        os.write(writer, bytes(1 << 17))  # guilty
    job.barrier()  # waiting


def _listen() -> socket.socket:
    server = socket.create_server(("127.0.0.1", 0), backlog=8)
    server.set_inheritable(True)
    return server


def silent_server(job: Job) -> None:
    """a server that does not reply"""
    server = _listen()
    job.begin()
    if job.is_victim:
        client = socket.create_connection(server.getsockname())
        client.sendall(b"metrics")
        client.recv(100)  # guilty
    job.barrier()  # waiting


def silent_http(job: Job) -> None:
    """an HTTP server that does not reply"""
    server = _listen()
    job.begin()
    if job.is_victim:
        urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/log").read()  # guilty
    job.barrier()  # waiting


def full_socket(job: Job) -> None:
    """a connection whose other side does not read"""
    server = _listen()
    job.begin()
    if job.is_victim:
        client = socket.create_connection(server.getsockname())
        client.sendall(bytes(1 << 26))  # guilty
    job.barrier()  # waiting


def full_backlog(job: Job) -> None:
    """a server that accepts no connection"""
    server = socket.create_server(("127.0.0.1", 0), backlog=0)
    job.begin()
    if job.is_victim:
        clients = set[socket.socket]()
        while len(clients) < 4:
            clients.add(socket.create_connection(server.getsockname()))  # guilty
    job.barrier()  # waiting


def no_client(job: Job) -> None:
    """a server to which nobody connects"""
    server = _listen()
    job.begin()
    if job.is_victim:
        server.accept()  # guilty
    job.barrier()  # waiting


def name_server(job: Job) -> None:
    """a name server that does not reply"""
    server = socket.socket(type=socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    job.begin()
    if job.is_victim:
        client = socket.socket(type=socket.SOCK_DGRAM)
        client.sendto(b"\1\0\0\1\0\0\0\0\0\0\2h1\0\0\1\0\1", server.getsockname())
        client.recvfrom(512)  # guilty
    job.barrier()  # waiting


def selected(job: Job) -> None:
    """select of a socket on which nothing comes"""
    server = _listen()
    job.begin()
    if job.is_victim:
        select.select([server], [], [])  # guilty
    job.barrier()  # waiting


def program(job: Job) -> None:
    """a program that waits, such as an upload"""
    job.begin()
    if job.is_victim:
        subprocess.run(["sleep", "9999"], check=True)  # guilty
    job.barrier()  # waiting


def full_program(job: Job) -> None:
    """a program whose output is not read"""
    job.begin()
    if job.is_victim:
        child = subprocess.Popen(["head", "-c", "9999999", "/dev/zero"], stdout=subprocess.PIPE)
        child.wait()  # guilty
    job.barrier()  # waiting


def output_of_program(job: Job) -> None:
    """a program that prints nothing"""
    job.begin()
    if job.is_victim:
        subprocess.check_output(["sleep", "9999"])  # guilty
    job.barrier()  # waiting


def forked_child(job: Job) -> None:
    """a forked process that waits for a signal"""
    job.begin()
    if job.is_victim:
        pid = os.fork()
        if not pid:
            signal.pause()
        os.waitpid(pid, 0)  # guilty
    job.barrier()  # waiting
