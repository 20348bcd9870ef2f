"""The errors that users meet. Each message says what was expected, what came, and what to do."""

from __future__ import annotations


class AotcError(Exception):
    """Base of all errors raised on purpose. ``exit_code`` is what the command line returns."""

    exit_code = 1


class InvalidModel(AotcError):
    """The model contradicts itself: shapes that do not fit, a missing edge, a broken file."""

    exit_code = 3


class UnsupportedModel(AotcError):
    """The model is valid and needs something that aotc lacks; lists all that is missing at once."""

    exit_code = 4


class InvalidOption(AotcError):
    """An option or argument that cannot be."""

    exit_code = 2


class BuildError(AotcError):
    """Lowering, compiling or linking failed."""

    exit_code = 5


class RuntimeFailure(AotcError):
    """A built file could not be opened or run."""

    exit_code = 6


class TooSlow(AotcError):
    """A measurement exceeds the limit that was given for it (``aotc bench --fail``)."""

    exit_code = 7


class TooBusy(AotcError):
    """A measurement that other processes disturbed too much to be judged."""

    exit_code = 8


class Unproven(AotcError):
    """Something that cannot be settled on this computer (``aotc check --board``)."""

    exit_code = 9
