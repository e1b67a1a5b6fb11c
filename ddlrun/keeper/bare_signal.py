"""The module signal without its enums, which take 3 ms to import: signals are plain numbers."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

__all__ = ["signal"]
