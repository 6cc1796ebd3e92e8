"""The versions this plug-in is made for. Methods with an underscore are overridden, so any other version is refused."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from mempo.errors import UserError

VERL = "0.9.1"
TRANSFER_QUEUE = "0.1.11"
BELOW_TRANSFORMERS = (5, 11)
"""verl 0.9.1 does not run beside this version of transformers, nor beside later ones."""
REMEDY = "pip install 'mempo[cluster]' in an environment of its own"


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def version_problems() -> list[str]:
    """What is missing or of another version, a line each; empty when all is well."""
    problems = []
    for package, wanted in (("verl", VERL), ("TransferQueue", TRANSFER_QUEUE)):
        found = installed(package)
        if found is None:
            problems.append(f"{package} is not installed; {REMEDY}")
        elif found != wanted:
            problems.append(f"{package} is {found}, but the plug-in is made for exactly {wanted}; {REMEDY}")
    transformers = installed("transformers")
    if transformers and tuple(map(int, transformers.split(".")[:2])) >= BELOW_TRANSFORMERS:
        limit = ".".join(map(str, BELOW_TRANSFORMERS))
        problems.append(f"transformers is {transformers}, but verl {VERL} needs one below {limit}; {REMEDY}")
    return problems


def require_versions() -> None:
    """Refuse to go on beside any other version.

    Raises:
        UserError: what is missing or different, and the remedy.
    """
    problems = version_problems()
    if problems:
        raise UserError("; ".join(problems))
