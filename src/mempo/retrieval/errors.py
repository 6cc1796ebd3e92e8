"""What can go wrong with a corpus or an index folder, each told in one message."""

from __future__ import annotations

from mempo.errors import UserError


class CorpusError(UserError):
    """A corpus file that cannot be used: missing, empty, a broken line, two documents with one id, changed on disk."""


class IndexFolderError(UserError):
    """An index folder that cannot be used: incomplete, of an unknown kind, or made from another corpus."""
