"""Finding documents for a query: a corpus on disk, an index over it, and the same over HTTP.

`document.py` names the nouns; `corpus.py` keeps the text; `index.py` opens indexes and `build.py` builds them;
`server/` and `client.py` speak the `/retrieve` and `/access` convention. Import from these modules: this one stays
empty, so that asking for a document does not load a web server.
"""
