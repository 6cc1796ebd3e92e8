"""What can go wrong with a file of questions."""

from __future__ import annotations

from mempo.errors import UserError


class QuestionFileError(UserError):
    """A question file that cannot be used: missing, empty, a broken row (named), two questions with one id."""
