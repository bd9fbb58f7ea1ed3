"""Which class an import path means, and of which classes a worker can be made; no Ray runs."""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from rl_cluster.errors import ConfigError
from rl_cluster.workers.target_import import import_target

ODD = """
class Outer:
    class Inner:
        pass

    number = 3

def __getattr__(name):
    if name == "exits":
        raise SystemExit(0)
    raise AttributeError(name)
"""


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with a module, a package, and modules that can't be imported."""
    (tmp_path / "odd_one.py").write_text(ODD, encoding="utf-8")
    (tmp_path / "odd_package").mkdir()
    (tmp_path / "odd_package/__init__.py").write_text("class Outer:\n    class Inner:\n        pass\n", encoding="utf-8")
    (tmp_path / "odd_exit.py").write_text("raise SystemExit(0)\n", encoding="utf-8")
    (tmp_path / "odd_attribute.py").write_text("None.nothing\n", encoding="utf-8")
    (tmp_path / "odd_needs.py").write_text("import odd_that_is_not_there\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("target", ["odd_one.Outer", "odd_one.Outer.Inner", "odd_package.Outer.Inner"])
def test_a_class_is_found_within_a_module_or_a_class(modules: Path, target: str) -> None:
    """The longest part of the path that is a module is imported."""
    found, options = import_target(target)
    assert (f"{found.__module__}.{found.__qualname__}", options) == (target, {})


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        pytest.param("odd_one.Outr", "module 'odd_one' has no 'Outr', got 'odd_one.Outr'. Fix: correct the name", id="no_class"),
        pytest.param(
            "odd_one.Outer.Iner", "class 'odd_one.Outer' has no 'Iner', got 'odd_one.Outer.Iner'. Fix: correct the name", id="no_inner"
        ),
        pytest.param(
            "odd_one.Outr.Inner", "module 'odd_one' has no 'Outr', got 'odd_one.Outr.Inner'. Fix: correct the name", id="no_outer"
        ),
        pytest.param(
            "odd_package.mod.Worker",
            "no module named 'odd_package.mod', got 'odd_package.mod.Worker'. Fix: install it, or add its folder to PYTHONPATH",
            id="no_module_of_a_package",
        ),
        pytest.param(
            "odd_nowhere.mod.Worker",
            "no module named 'odd_nowhere', got 'odd_nowhere.mod.Worker'. Fix: install it, or add its folder to PYTHONPATH",
            id="no_package",
        ),
        pytest.param(
            "odd_needs.Worker",
            "no module named 'odd_that_is_not_there', got 'odd_needs.Worker'. Fix: install it, or add its folder to PYTHONPATH",
            id="needs_another",
        ),
        pytest.param("odd_exit.Worker", "importing 'odd_exit' failed with SystemExit: 0. Fix: see the log for its traceback", id="exits"),
        pytest.param(
            "odd_one.exits", "looking for 'odd_one.exits' failed with SystemExit: 0. Fix: see the log for its traceback", id="exits_later"
        ),
        pytest.param(
            "odd_attribute.Worker",
            "importing 'odd_attribute' failed with AttributeError: 'NoneType' object has no attribute 'nothing'. "
            "Fix: see the log for its traceback",
            id="attribute_error_at_import",
        ),
        pytest.param("odd_one.Outer.number", "must be a class, got 3. Fix: name a class", id="no_class_at_all"),
    ],
)
def test_a_path_that_means_no_class_is_one_line(modules: Path, target: str, problem: str) -> None:
    """It says which part is missing; a module that ends the process at import is its user's mistake, not the end."""
    with pytest.raises(ConfigError) as caught:
        import_target(target)
    assert caught.value.problems == (f"worker.target: {problem}",)


class Abstract(abc.ABC):
    @abc.abstractmethod
    def step(self) -> None: ...


class Meta(type):
    pass


class Colour(enum.Enum):
    RED = 1


class Final:
    def __init_subclass__(cls) -> None:
        raise RuntimeError("no subclasses")


class AsyncInit:
    async def __init__(self) -> None:  # type: ignore[misc]
        pass


class YieldingInit:
    def __init__(self) -> Iterator[int]:  # type: ignore[misc]
        yield 1


class New:
    def __new__(cls, size: int) -> New:
        return super().__new__(cls)


@attrs.frozen
class Frozen:
    size: int = 1


FROZEN_FIX = "Fix: name a class that is not frozen, which may hold a frozen one"
UNFIT = {
    "abstract": (Abstract, "must be a class without abstract methods (step)", "Fix: name a subclass that has them"),
    "metaclass": (Meta, "must be a class whose instances are objects, not a metaclass", "Fix: name a class"),
    "enum": (
        Colour,
        "must be a class that can be derived from (TypeError: ",
        "Fix: name a class that wraps it",
    ),
    "init_subclass": (
        Final,
        "must be a class that can be derived from (RuntimeError: no subclasses)",
        "Fix: name a class that wraps it",
    ),
    "async_init": (
        AsyncInit,
        "must have a plain __init__ (async def and yield do nothing there)",
        "Fix: do it in a method, which worker.method may name",
    ),
    "yielding_init": (
        YieldingInit,
        "must have a plain __init__ (async def and yield do nothing there)",
        "Fix: do it in a method, which worker.method may name",
    ),
    "new": (New, "must have no __new__ that takes arguments (missing a required argument: 'size')", "Fix: take them in __init__"),
    "frozen": (Frozen, "must be a class whose attributes can be set (FrozenInstanceError: can't set attribute)", FROZEN_FIX),
}


@pytest.mark.parametrize(("kind", "rule", "fix"), UNFIT.values(), ids=UNFIT.keys())
def test_a_class_that_can_be_no_worker_is_one_line(kind: type, rule: str, fix: str) -> None:
    """Before any process is started for it."""
    with pytest.raises(ConfigError) as caught:
        import_target(kind)
    got = str(caught.value)
    assert got.startswith(f"worker.target: {rule}")
    assert got.endswith(f"got {__name__}.{kind.__qualname__}. {fix}")
    assert "\n" not in got


class Slots:
    __slots__ = ("size",)


class Single:
    _one: Any = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Single:
        cls._one = cls._one or super().__new__(cls)
        return cls._one  # type: ignore[no-any-return]


class Guarded:
    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@attrs.define
class Defined:
    size: int = 1


@dataclasses.dataclass(frozen=True)
class FrozenData:  # looks at the type, so a class that is derived from it can be set
    size: int = 1


@pytest.mark.parametrize("kind", [Slots, FrozenData, Single, Guarded, Defined, dict])
def test_an_odd_class_that_works_is_taken(kind: type) -> None:
    """Only what Ray or the start itself can't do is refused."""
    assert import_target(kind) == (kind, {})
