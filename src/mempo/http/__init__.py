"""The one HTTP client, for model servers, retrieval servers and the web: a deadline over the whole of a request, one
retry policy, one set of errors, and nothing secret in anything that comes back."""
