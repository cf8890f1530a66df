"""The packages of ``minikv[engine]`` that ``pip install minikv`` leaves out, and the error if one is absent or too old.

The rooms load their names on first use (PEP 562): planner, block manager, simulator, widgets and command line run
without torch, and only a name that needs it imports it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from minikv.errors import MissingPackageError

# name: the oldest sufficient release, as pyproject.toml declares it (a test compares).
ENGINE = {"torch": "2.11", "transformers": "5.15", "safetensors": "0.4"}
INSTALL_ENGINE = "minikv[engine]"


def require_engine() -> None:
    """Raise ``MissingPackageError`` unless the packages of ``ENGINE`` are installed, none of them too old.

    Read from the packages' own metadata: nothing is imported.
    """
    for name, least in ENGINE.items():
        found = installed(name)
        if found is None:
            raise MissingPackageError("engine_absent", name=name, wanted=INSTALL_ENGINE)
        if is_older(found, least):
            raise MissingPackageError(
                "engine_too_old", name=name, found=found, least=least, wanted=INSTALL_ENGINE
            )


@contextmanager
def engine_needed() -> Iterator[None]:
    """Raise ``require_engine``'s error if an import within fails for its reason."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package in ENGINE:
            try:
                require_engine()
            except MissingPackageError as missing:
                raise missing from None
        raise


def load_engine(module: str, name: str) -> Any:
    """Return a name of a module that needs the packages of ``ENGINE``, for a room that must not import it."""
    with engine_needed():
        return getattr(import_module(module), name)


def on_first_use(package: str, home: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``; ``home`` names the module from which each name loads."""

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with engine_needed():
            return getattr(import_module(f"{package}.{home[name]}"), name)

    return load


def installed(name: str) -> str | None:
    """The version of an installed package, or None."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def is_older(found: str, least: str) -> bool:
    """As pip compares: 2.8.0rc1 is older than 2.8, 2.8.0+cpu is not. A version of no known form passes."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(found) < Version(least)
    except InvalidVersion:
        return False
