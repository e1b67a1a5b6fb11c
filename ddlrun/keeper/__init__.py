"""The program that runs on each host beside the user's: it needs the standard library alone."""

TYPE_CHECKING = False
if TYPE_CHECKING:  # module dataclasses takes 10 ms to import
    from dataclasses import dataclass as record
else:

    def record(cls: type) -> type:
        """Add an initializer that sets fields by their names; the others have the defaults of the class."""
        names = tuple(cls.__annotations__)
        cls.__init__ = lambda self, **fields: self.__dict__.update(fields)
        cls.__repr__ = lambda self: f"{cls.__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
        cls.__eq__ = lambda self, other: type(other) is cls and repr(self) == repr(other)
        return cls


__all__ = ["record"]
