"""Extensions of mempo in one file each; docs/extending.md tells about them."""
