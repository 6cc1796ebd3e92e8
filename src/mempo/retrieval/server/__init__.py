"""The retrieval service, `mempo serve`."""
