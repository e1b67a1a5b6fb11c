"""Words of messages."""


def counted(count: int, noun: str) -> str:
    """Render a count with its noun.

    >>> counted(1, "rank"), counted(0, "GPU")
    ('1 rank', '0 GPUs')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
