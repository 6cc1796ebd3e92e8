"""Own tool, own tag `<calculate>`: `agent.tools=[search,examples.own_calculator:Calculator]`."""

from __future__ import annotations

import ast
import operator

from mempo.rollout.interfaces import ToolErrorKind, ToolResult

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Calculator:
    """`name` is its tag; `description` is told to the policy in the system prompt."""

    name = "calculate"
    description = "an expression of numbers with + - * / and brackets, such as 3 * (2 + 4); its value comes back."

    async def call(self, argument: str) -> ToolResult:
        try:
            return ToolResult(passages=(f"{argument} = {value(ast.parse(argument[:200], mode='eval').body):g}",))
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
            return ToolResult(notice=f"error: {argument[:80]!r} is {error}", error=ToolErrorKind.BAD_CALL)


def value(node: ast.expr) -> float:
    """The policy writes the expression, so nothing is evaluated but arithmetic."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](value(left), value(right))
    raise ValueError("no expression of numbers with + - * / and brackets")
