"""ddlrun's side of the transfer: it collects the hosts' states, gives each its part, and sends the archives."""

import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence

from ddlrun.errors import DdlrunError, PreflightError, UnreachableError
from ddlrun.hosts import fold
from ddlrun.remote.probe import ProbeTarget
from ddlrun.ship.archive import Archive
from ddlrun.ship.host.link import HostLink
from ddlrun.ship.host.protocol import ARCHIVE, NO_ARCHIVE, STATE, TRANSFERS, HostState, Transfer, Transfers
from ddlrun.ship.host.relay import has_zstd
from ddlrun.ship.host_server import HostServer, receive
from ddlrun.ship.transfer import TransferPlan, chain_order, judge

LEAST_COMPRESSED = 1 << 20
# The fastest level: 946 MB of an environment with PyTorch become 265 MB, at 365 MB/s per thread.
COMPRESS = ("zstd", "-q", "-c", "-1", "-T4")


class TransferServer(HostServer):
    """The connections of the hosts of one transfer, and what they are told."""

    def __init__(self, plan: TransferPlan) -> None:
        """Listen."""
        super().__init__(plan.addresses, plan.hosts)
        self._plan = plan
        self._archives = {archive.digest: archive for archive in plan.archives}
        self.states: dict[str, HostState] = {}
        """Host -> its state before the transfer."""
        self.problems: Sequence[str] = ()
        self.unread = False
        """Whether a host lacks an archive whose files were not looked at, so that nothing was sent."""
        self.error: DdlrunError | None = None
        """The error of a file that could not be read."""
        self.moved: dict[str, list[str]] = {}
        """The hosts that get each archive, or would get it, by its hash, in the order of the chain."""
        self._address_of: dict[str, str] = {}
        self._decided = False
        self._report_until = time.monotonic() + plan.seconds

    def serve(self, link: HostLink, claim: bytes) -> None:
        """Give a host its part of the transfer, once all have reported their states, or send it an archive."""
        if claim != NO_ARCHIVE:
            self._send(link, claim.hex())
            return
        state = receive(link, STATE, HostState)
        if state.host not in self._plan.hosts:
            return
        with self.changed:
            again = self._decided
            if not again:
                self.states[state.host] = state
                self._address_of[state.host] = str(link.socket.getpeername()[0]).removeprefix("::ffff:")
            if not self._decided and len(self.states) == len(self._plan.hosts):
                self._decide()
            self.changed.wait_for(lambda: self._decided or self.closing, self._report_until - time.monotonic())
        if self._decided:
            link.send(TRANSFERS, self._transfers(state, again=again))

    def _send(self, link: HostLink, digest: str) -> None:
        archive = self._archives.get(digest)
        if archive is None:
            return
        link.send(ARCHIVE)
        try:
            if self._is_compressed(archive):
                _compress(archive.blocks(), link)
            else:
                for block in archive.blocks():
                    link.socket.sendall(block)
        except DdlrunError as error:
            self.error = error

    def _decide(self) -> None:
        """Choose the chains, and let the hosts that wait have their parts."""
        self.problems = judge(self.states, self._plan)
        for archive in self._plan.archives:
            wanted = [host for host in self._plan.hosts if archive.digest in self.states[host].missing]
            self.moved[archive.digest] = chain_order(wanted, self._plan.racks, self._plan.first)
            self.unread |= bool(wanted) and archive.entries is None and not self._plan.only_check
        self._decided = True
        self.changed.notify_all()

    def _transfers(self, state: HostState, *, again: bool) -> Transfers:
        """Return a host's part of the transfer. A host that reports its state again has lost its place in the chain."""
        stop = bool(self.problems) or self.unread or self._plan.only_check
        missing = [] if stop else [archive for archive in self._plan.archives if archive.digest in state.missing]
        return Transfers(tuple(self._transfer(state.host, archive, again=again) for archive in missing), stop)

    def _transfer(self, host: str, archive: Archive, *, again: bool) -> Transfer:
        """Return a host's part in the transfer of an archive."""
        chain = [host] if again else self.moved[archive.digest]
        place = chain.index(host)
        before = chain[place - 1] if place else None
        return Transfer(
            digest=archive.digest,
            size=archive.size,
            addresses=tuple(self._plan.addresses) if before is None else (self._address_of[before],),
            port=self.port if before is None else self.states[before].port,
            passes_on=host != chain[-1],
            compressed=self._is_compressed(archive),
        )

    def _is_compressed(self, archive: Archive) -> bool:
        """Return True for an archive that is large, travels over links, and goes to hosts that have zstd."""
        hosts = self.moved[archive.digest]
        remote = any(host != self._plan.first for host in hosts)
        return (
            archive.size >= LEAST_COMPRESSED and remote and has_zstd() and all(self.states[host].zstd for host in hosts)
        )


def _compress(blocks: Iterable[bytes], link: HostLink) -> None:
    """Send blocks by way of zstd. Raises as `blocks`, or OSError."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(COMPRESS, stdin=pipe, stdout=link.socket.fileno(), stderr=null) as process:  # noqa: S603 - constant words
        for block in blocks:
            process.stdin.write(block)  # type: ignore[union-attr]


def transfer(plan: TransferPlan, reach: ProbeTarget) -> TransferServer:
    """Put the archives on all hosts that do not have them, and make the folder of the run there; return the server.

    Raises:
        PreflightError: A host lacks space or the interpreter, or a file has changed meanwhile.
        UnreachableError: A host could not be reached, or failed.
    """
    sources = [
        {
            "digest": archive.digest, "path": archive.source.path, "whole": archive.source.whole,
            "space": archive.space,
        }
        for archive in plan.archives
    ]  # fmt: skip
    task = {
        "action": "receive",
        "folder": plan.request.folder,
        "run": plan.run_id,
        "working_folder": plan.request.working_folder,
        "fetched": plan.request.fetched,
        "seconds": plan.seconds,
        "only_check": plan.only_check,
        "interpreter": "" if plan.interpreter is None else plan.interpreter.path,
        "sources": sources,
    }
    server = TransferServer(plan)
    reports = server.run(task, reach)
    if server.problems:
        raise PreflightError(*server.problems)
    if server.error is not None:
        raise server.error
    _raise_failures({host: str(report["error"]) for host, report in reports.items() if "error" in report}, server)
    return server


def _raise_failures(failures: Mapping[str, str], server: TransferServer) -> None:
    """Raise UnreachableError with the hosts that failed; where some have not even greeted, with these alone."""
    silent = {host: reason for host, reason in failures.items() if host not in server.states}
    alike: dict[str, list[str]] = {}
    for host, reason in (silent or failures).items():
        alike.setdefault(reason, []).append(host)
    if alike:
        raise UnreachableError(*(f"host {fold(hosts)}: `--ship`: {reason}" for reason, hosts in alike.items()))
