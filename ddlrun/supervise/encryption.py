"""The package for encrypted connections to keepers: its folder, and the suite."""

import os
import sys
from typing import TYPE_CHECKING

from ddlrun.errors import PreflightError

if TYPE_CHECKING:
    from ddlrun.keeper.encryption import EncryptionSuite


def find_cryptography() -> str:
    """Return the folder of the package cryptography, for SupervisionOptions.encryption. Raises PreflightError."""
    try:
        load_suite()
    except ImportError as error:
        raise PreflightError(
            f"`--encrypt`: {sys.executable} cannot import cryptography ({error}); "
            f"{sys.executable} -m pip install cryptography"
        ) from error
    return os.path.dirname(os.path.dirname(os.path.abspath(str(sys.modules["cryptography"].__file__))))


def load_suite() -> "EncryptionSuite":
    """Return the suite that encrypts messages. Raises ImportError."""
    from ddlrun.keeper.encryption import EncryptionSuite  # noqa: PLC0415 - 10 ms, for --encrypt alone

    return EncryptionSuite()
