"""Finds what keeps a program off the Neural Engine, or makes it slow or wrong there.

Each rule says where it is from: Apple documents little of this, most was found by people who
measured. docs/ane.md lists the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from .reader import Function, Operation, TensorType


class Level(StrEnum):
    """How bad a finding is."""

    error = "error"
    warning = "warning"
    info = "info"


class Family(StrEnum):
    """Generations of the Neural Engine that rules tell apart."""

    before_a16 = "before-a16"  # A11 to A15, M1 to M3
    a16 = "a16"  # A16 and later, M4 and later


@dataclass(frozen=True)
class Finding:
    """Something that a rule objects to.

    Attributes:
        rule: the rule's id.
        level: how bad it is.
        where: an operation, input, output or constant.
        what: what is wrong with it.
    """

    rule: str
    level: Level
    where: str
    what: str


@dataclass(frozen=True)
class Rule:
    """A rule.

    Attributes:
        id: to refer to it.
        level: of its findings.
        text: what it asks for.
        source: who found it.
        check: yields (where, what).
    """

    id: str
    level: Level
    text: str
    source: str
    check: Callable[[Program], Iterator[tuple[str, str]]]


class Program:
    """A function with what rules look up.

    Args:
        function: as read from a package.
        family: which Neural Engine it is for.
    """

    def __init__(self, function: Function, family: Family = Family.before_a16):
        self.function, self.family = function, family
        self.types = function.types
        self.maker = {name: op for op in function.operations for name in op.outputs}

    @cached_property
    def running(self) -> list[Operation]:
        """Operations that are not constants in disguise."""
        return [op for op in self.function.operations if not op.type.startswith("constexpr_")]

    def shape(self, name: object) -> tuple[int, ...] | None:
        """Of a value or a constant, None if it is neither."""
        if isinstance(name, np.ndarray):
            return name.shape
        kind: TensorType | None = self.types.get(str(name))
        if kind is not None:
            return kind.shape
        constant = self.function.constants.get(str(name))
        return None if constant is None else constant.shape

    def constant(self, name: object) -> np.ndarray | None:
        """The value of a constant, None if it is computed."""
        return name if isinstance(name, np.ndarray) else self.function.constants.get(str(name))

    def is_weight(self, name: object) -> bool:
        """Whether it is a constant, stored or plain."""
        maker = self.maker.get(str(name))
        return self.constant(name) is not None or (
            maker is not None and maker.type.startswith("constexpr_")
        )

    def given(self, operation: Operation, name: str) -> object:
        """An operation's input, None if it has none of this name."""
        return operation.inputs.get(name, [None])[0]


def lint(function: Function, family: Family = Family.before_a16) -> list[Finding]:
    """What all rules find in a function, the worst first."""
    from .rules import RULES

    program = Program(function, family)
    found = [
        Finding(rule.id, rule.level, where, what)
        for rule in RULES
        for where, what in rule.check(program)
    ]
    order = list(Level)
    return sorted(found, key=lambda finding: order.index(finding.level))
