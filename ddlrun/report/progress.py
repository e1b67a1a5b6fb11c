"""A progress bar on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(*, shown: bool) -> Iterator[Callable[[str, float | None], None]]:
    """Yield a callback that shows a description and the share done (None: unknown); without `shown` it does nothing."""
    if not shown:
        yield lambda _description, _share: None
        return
    from rich.console import Console  # noqa: PLC0415 - 35 ms, on a terminal alone
    from rich.progress import Progress  # noqa: PLC0415 - 20 ms more

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def update(description: str, share: float | None) -> None:
            bar.update(task, description=description, total=None if share is None else 1.0, completed=share or 0.0)

        yield update
