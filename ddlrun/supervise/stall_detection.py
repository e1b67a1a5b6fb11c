"""Ranks that print nothing for long, and where they stand."""

import re
from collections.abc import Callable

from ddlrun.plan.supervision import SupervisionOptions
from ddlrun.rank import protocol
from ddlrun.supervise.keepers import Keepers


class StallDetector:
    """Asks where ranks stand that printed nothing for `watch.stall` seconds, and tells it."""

    def __init__(self, watch: SupervisionOptions, tell: Callable[[str], None]) -> None:
        self._watch, self._tell = watch, tell
        self._seconds = watch.stall
        self._asked: set[int] = set()
        self._stand: dict[str, tuple[str, list[int]]] = {}

    def look(self, now: float, printed: float, keepers: Keepers) -> None:
        """Ask those that are silent; one that never printed, only if none did since `printed`, too long ago."""
        silent = now > printed + self._seconds
        found = [
            peer
            for peer in keepers.peers.values()
            if peer.running and not peer.stalled
            and now > peer.printed + self._seconds and (peer.ever_printed or silent)
        ]  # fmt: skip
        for peer in found:
            peer.stalled = True
            keepers.send(peer, protocol.INSPECT)
            self._asked.add(peer.rank or 0)
        if found:
            self._tell(f"{self._watch.named(peer.rank or 0 for peer in found)} printed nothing for {self._seconds:g} s")

    def stands(self, rank: int, where: str) -> None:
        """Collect where ranks stand; when all have told, show it, those that stand alike together."""
        self._asked.discard(rank)
        alike = re.sub(r"(?i)\b(process|thread) (0x)?[0-9a-f]+", r"\1", where)
        self._stand.setdefault(alike, (where, []))[1].append(rank)
        if not self._asked:
            for text, ranks in self._stand.values():
                self._tell("\n".join([f"{self._watch.named(ranks)} stood here:", *text.splitlines()]))
            self._stand.clear()
