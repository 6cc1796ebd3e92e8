"""Built-in worlds: corpora and questions made from facts that ship with the package."""
