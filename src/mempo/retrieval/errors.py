"""What can go wrong with a corpus, an index folder or a retrieval server, each told in one message."""

from __future__ import annotations

from mempo.errors import UserError
from mempo.http.errors import HttpError

RetrievalError = HttpError
"""A request to a retrieval server that failed for good, after all tries."""


class CorpusError(UserError):
    """A corpus file that cannot be used: missing, empty, a broken line, two documents with one id, changed on disk."""


class IndexFolderError(UserError):
    """An index folder that cannot be used: incomplete, of an unknown kind, or made from another corpus."""
