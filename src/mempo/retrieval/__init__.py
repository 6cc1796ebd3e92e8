"""Finding documents for a query: corpora on disk, indexes over them, and the HTTP service and client."""
