"""Records for keepers and agents: module dataclasses takes 10 ms to import."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:

    def record(cls: type) -> type:
        """Add an initializer that sets fields by their names; the others have the defaults of the class."""
        cls.__init__ = lambda self, **fields: self.__dict__.update(fields)
        return cls


__all__ = ["record"]
