"""Lists of ranks such as 0-2,7, as samples and findings name them."""


def expand_ranks(ranks: str) -> list[int]:
    """Return the single ranks of a list.

    >>> expand_ranks("0-2,7"), expand_ranks("")
    ([0, 1, 2, 7], [])
    """
    spans = [part.partition("-") for part in ranks.split(",") if part]
    return [rank for first, _, last in spans for rank in range(int(first), int(last or first) + 1)]
