"""From a fetched page to title and text, with trafilatura (the extra `mempo[web]`)."""

from __future__ import annotations

import codecs
import logging

from mempo.errors import UserError
from mempo.retrieval.document import Document
from mempo.storage.jsonl import valid_text
from mempo.tools.call import BadCall
from mempo.tools.web_fetch import FetchedPage


def require_extraction() -> None:
    """Raises UserError when the libraries are not installed: at the start of a run, and not in its middle."""
    try:
        import trafilatura  # noqa: F401
    except ImportError as error:
        raise UserError(f'reading pages of the web needs `pip install "mempo[web]"` ({error})') from None
    for name in ("trafilatura", "htmldate"):  # they report every odd page as an error of theirs
        logging.getLogger(name).setLevel(logging.CRITICAL)


def document_of(page: FetchedPage) -> Document:
    """The page's own text, without menus and scripts. Raises BadCall when there is none."""
    if page.content_type == "text/plain":
        title, text = "", _decode(page)
    else:
        title, text = _main_text(page)
    text = valid_text(text).replace("\0", " ").strip()
    if not text:
        raise BadCall("the page has no text")
    return Document(page.url, valid_text(" ".join(title.split())), text, page.url)


def _main_text(page: FetchedPage) -> tuple[str, str]:
    import trafilatura

    markup = _decode(page) if page.charset else page.content  # without a name of its own it is guessed from the bytes
    try:
        found = trafilatura.bare_extraction(markup, url=page.url, include_comments=False, with_metadata=True)
        text = getattr(found, "text", None)
        # Short pages have no main text that could be told from the rest.
        return str(getattr(found, "title", None) or ""), str(text or trafilatura.html2txt(markup))
    except Exception as error:  # markup of any kind comes here, and may meet any bug
        raise BadCall(f"the page's text cannot be read ({type(error).__name__})") from None


def _decode(page: FetchedPage) -> str:
    try:
        name = codecs.lookup(page.charset or "utf-8").name
        return page.content.decode(name, "replace")
    except (LookupError, ValueError):
        return page.content.decode("utf-8", "replace")
