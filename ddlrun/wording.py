"""Words of messages."""

import re
import signal
from collections.abc import Iterable, Mapping

COLOUR = r"\x1b\[[0-9;:]*m"
# Of a mistyped word with the name that is suggested; 1: equal.
LEAST_SIMILARITY = 0.65
# What a thread waits for -> the beginnings of the names of kernel functions, as /proc/PID/wchan has them.
KERNEL_WAITS = {
    "sleep": ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep"),
    "lock": ("futex_", "do_futex"),
    "poll": ("ep_poll", "do_epoll", "do_poll", "do_sys_poll", "do_select", "poll_schedule_timeout", "io_cqring_wait"),
    "pipe read": ("pipe_read", "anon_pipe_read", "pipe_wait_readable"),
    "pipe write": ("pipe_write", "anon_pipe_write", "pipe_wait_writable"),
    "pipe open": ("fifo_open", "wait_for_partner"),
    "socket": ("wait_woken",),
    "socket read": ("sk_wait_data", "unix_stream_read", "unix_stream_data", "__skb_wait", "tcp_recvmsg"),
    "socket write": ("sk_stream_wait_memory", "sock_alloc_send", "sock_wait_for_wmem", "unix_wait_for_peer"),
    "connect": ("inet_wait_for_connect", "inet_stream_connect", "__inet_stream_connect"),
    "accept": ("inet_csk_accept", "inet_csk_wait_for_connect", "unix_accept"),
    "child process": ("do_wait", "kernel_wait"),
    "signal": ("sigsuspend", "do_sigtimedwait", "__do_sys_pause", "sys_pause", "do_pause"),
    "stopped": ("do_signal_stop", "do_jobctl_trap", "ptrace_stop", "do_freezer_trap"),
    "file lock": ("flock_", "posix_lock", "locks_lock", "fcntl_setlk"),
    "page I/O": ("folio_wait", "__folio_lock", "wait_on_page", "__lock_page", "filemap_", "do_swap_page", "swap_read"),
    "disk I/O": ("io_schedule", "blk", "bit_wait_io", "submit_bio", "wait_on_buffer", "__wait_on_buffer", "jbd2_",
                 "ext4_", "xfs_", "btrfs_", "balance_dirty", "dio_", "iomap_", "read_events"),
    "NFS": ("rpc_wait", "nfs"),
    "FUSE": ("request_wait_answer", "fuse_"),
    "Lustre": ("ptlrpc_", "ldlm_", "cl_", "ll_", "osc_"),
    "GPFS": ("cxiWaitEvent",),
    "Ceph": ("ceph_",),
    "terminal": ("n_tty_", "tty_"),
    "memory": ("mem_cgroup_", "throttle_direct_reclaim", "shrink_", "try_to_free"),
    "GPU driver": ("nv", "uvm_", "os_acquire", "kfd_", "amdgpu_", "drm_", "dma_fence_"),
}  # fmt: skip


def counted(count: int, noun: str) -> str:
    """Render a count with its noun.

    >>> counted(1, "rank"), counted(0, "GPU")
    ('1 rank', '0 GPUs')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def signal_name(number: int) -> str:
    """Return the name of a signal; most real-time signals have none.

    >>> signal_name(15), signal_name(40)
    ('SIGTERM', 'signal 40')
    """
    names = {int(named): named.name for named in signal.Signals}
    return names.get(number, f"signal {number}")


def kernel_wait(function: str) -> str:
    """Return the words for a function of the kernel in which a thread waits; its name where there are none.

    >>> kernel_wait("hrtimer_nanosleep"), kernel_wait("folio_wait_bit_common"), kernel_wait("new_function")
    ('sleep', 'page I/O', 'new_function')
    """
    return next((words for words, names in KERNEL_WAITS.items() if function.startswith(names)), function)


def printable(text: str) -> str:
    r"""Return a text from elsewhere as a terminal can show it: without colours, other control characters escaped.

    Ends of lines and tabs stay.

    >>> printable("\x1b[31mred\x1b[0m \x1b]0;title\x07 a\tb")
    'red \\x1b]0;title\\x07 a\tb'
    """
    if text.replace("\n", " ").replace("\t", " ").isprintable():
        return text
    return "".join(map(_escape, re.sub(COLOUR, "", text)))


def printable_line(text: str) -> str:
    r"""Return a text from elsewhere as `printable` does, with ends of lines and tabs escaped, too.

    >>> printable_line("a\nddlrun: error: b")
    'a\\nddlrun: error: b'
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(character: str) -> str:
    plain = character.isprintable() or character in "\n\t"
    return character if plain else character.encode("unicode_escape").decode()


def did_you_mean(word: str, names: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """Return a question with the name that a mistyped word stands for, in brackets; empty where none is near.

    `synonyms` are words of other programs, each with the name that means the same here.

    >>> did_you_mean("lunch", ["launch", "lint"]), did_you_mean("x", ["launch"])
    (' (did you mean launch?)', '')
    """
    meant = nearest(word, names, synonyms)
    return "" if meant is None else f" (did you mean {meant}?)"


def nearest(word: str, names: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str | None:
    """Return the name that a mistyped word stands for; None where none is near."""
    import difflib  # noqa: PLC0415 - 0.7 ms, for mistyped words alone

    known = (synonyms or {}).get(word.lower())
    return known or next(iter(difflib.get_close_matches(word.lower(), list(names), 1, LEAST_SIMILARITY)), None)
