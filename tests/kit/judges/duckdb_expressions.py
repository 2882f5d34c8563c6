"""Translates an expression to DuckDB: SQL for its value, which never fails, and SQL for whether Spark would fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from millpond.errors import UnsupportedQuery
from millpond.model.expressions import Call, Column, Expression, Foreign, Literal, Parameter, render
from millpond.model.types import digits_of, integer_range, is_decimal, is_float, is_integer


class Unsupported(UnsupportedQuery):
    """DuckDB cannot compute a part of the query; use another judge."""


class Sql(NamedTuple):
    """`value` never fails, and has no meaning where `raised` is true; `raised` is never NULL."""

    value: str
    raised: str = "FALSE"


_Translator: TypeAlias = Callable[[Call, Sequence[Sql]], Sql]


def quoted(name: str) -> str:
    """A name as an SQL identifier.

    >>> quoted('agg:0')
    '"agg:0"'
    """
    return '"' + name.replace('"', '""') + '"'


def either(*conditions: str) -> str:
    """The disjunction of conditions that are never NULL.

    >>> either("FALSE", "a", "b"), either()
    ('(a OR b)', 'FALSE')
    """
    real = [condition for condition in conditions if condition != "FALSE"]
    return f"({' OR '.join(real)})" if real else "FALSE"


def both(*conditions: str) -> str:
    """The conjunction of conditions that are never NULL."""
    return "FALSE" if "FALSE" in conditions else f"({' AND '.join(conditions)})"


def translate(expression: Expression) -> Sql:
    """The expression over columns of the same names, types as in the judge's table.

    Raises:
        Unsupported: DuckDB cannot compute a part of it.
    """
    if isinstance(expression, Foreign | Parameter):
        raise Unsupported(f"DuckDB does not know {render(expression)}.")
    if "float" in (expression.type, *(arg.type for arg in getattr(expression, "args", ()))):
        raise Unsupported("DuckDB's judge has no 32-bit arithmetic.")
    if isinstance(expression, Column):
        return Sql(quoted(expression.name))
    if isinstance(expression, Literal):
        return Sql(_constant(expression))
    translator = _TRANSLATORS.get(expression.op)
    if translator is None:
        raise Unsupported(f"DuckDB's {expression.op} is not Spark's.")
    return translator(expression, [translate(arg) for arg in expression.args])


_TYPES = {"string": "VARCHAR", "boolean": "BOOLEAN", "double": "DOUBLE"}


def _type(kind: str) -> str:
    if kind in _TYPES or is_decimal(kind):
        return _TYPES.get(kind, kind)
    if is_integer(kind) or kind == "timestamp":
        return "BIGINT"
    raise Unsupported(f"DuckDB's judge does not hold {kind}.")


def _constant(constant: Literal) -> str:
    value = constant.value
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    text = "NULL" if value is None else f"'{value}'" if is_decimal(constant.type) else f"'{value!r}'"
    return f"CAST({text} AS {_type(constant.type)})"


# --- which arguments are evaluated, and which of them fail ------------------------------------------------


def _strict(args: Sequence[Sql]) -> str:
    """Whether an argument of a strict operator fails: one is evaluated only if all previous ones are not NULL."""
    *before, last = args
    raised = last.raised
    for arg in reversed(before):
        raised = either(arg.raised, both(f"({arg.value}) IS NOT NULL", raised))
    return raised


def _all(args: Sequence[Sql]) -> str:
    return either(*(arg.raised for arg in args))


def _logic(node: Call, args: Sequence[Sql]) -> Sql:
    ends = "FALSE" if node.op == "and" else "TRUE"
    raised = "FALSE"
    for arg in reversed(args):
        raised = either(arg.raised, both(f"({arg.value}) IS NOT {ends}", raised))
    return Sql("(" + f" {node.op.upper()} ".join(f"({arg.value})" for arg in args) + ")", raised)


def _in(_node: Call, args: Sequence[Sql]) -> Sql:
    value, *options = args
    raised = "FALSE"
    for option in reversed(options):
        found = f"(({value.value}) = ({option.value})) IS NOT TRUE"
        raised = either(option.raised, both(found, raised))
    listed = ", ".join(option.value for option in options)
    return Sql(
        f"(({value.value}) IN ({listed}))",
        either(value.raised, both(f"({value.value}) IS NOT NULL", raised)),
    )


def _case(node: Call, args: Sequence[Sql]) -> Sql:
    pairs = list(zip(args[0::2], args[1::2], strict=False))
    otherwise = args[-1] if len(args) % 2 else Sql("NULL")
    value, raised = otherwise
    for condition, chosen in reversed(pairs):
        holds = f"({condition.value}) IS TRUE"
        value = f"CASE WHEN {holds} THEN {chosen.value} ELSE {value} END"
        raised = either(condition.raised, both(holds, chosen.raised), both(f"({condition.value}) IS NOT TRUE", raised))
    return Sql(f"CAST({value} AS {_type(node.type)})", raised)


def _coalesce(_node: Call, args: Sequence[Sql]) -> Sql:
    raised = "FALSE"
    for arg in reversed(args):
        raised = either(arg.raised, both(f"({arg.value}) IS NULL", raised))
    return Sql(f"coalesce({', '.join(arg.value for arg in args)})", raised)


# --- arithmetic --------------------------------------------------------------------------------------------


def _checked(node: Call, exact: str, args: Sequence[Sql], raised: str | None = None) -> Sql:
    """An integer result computed in HUGEINT, a decimal, which is exact, or a double."""
    reached = _strict(args) if raised is None else raised
    if is_decimal(node.type):
        return Sql(f"CAST(({exact}) AS {node.type})", reached)
    if is_float(node.type):
        return Sql(f"({exact})", reached)
    low, high = integer_range(node.type)
    outside = f"coalesce(({exact}) NOT BETWEEN {low} AND {high}, FALSE)"
    return Sql(f"TRY_CAST(({exact}) AS BIGINT)", either(reached, outside))


def _operand(node: Call, arg: Sql) -> str:
    if is_decimal(node.type):
        return f"({arg.value})"
    return f"({arg.value})::{'DOUBLE' if is_float(node.type) else 'HUGEINT'}"


def _arithmetic(sign: str) -> _Translator:
    def translator(node: Call, args: Sequence[Sql]) -> Sql:
        left, right = (_operand(node, arg) for arg in args)
        if is_decimal(node.type):
            precision, scale = digits_of(node.args[0].type)
            left = f"CAST({left} AS DECIMAL({max(precision, 19)}, {scale}))"  # otherwise DuckDB computes in 64 bits
        return _checked(node, f"{left} {sign} {right}", args)

    return translator


def _division(sign: str) -> _Translator:
    def translator(node: Call, args: Sequence[Sql]) -> Sql:
        left, right = (_operand(node, arg) for arg in args)
        # The divisor is evaluated first; 0 fails unless the dividend is NULL.
        by_zero = f"coalesce({right} = 0 AND {left} IS NOT NULL, FALSE)"
        quotient = f"CASE WHEN {right} <> 0 THEN {left} {sign} {right} END"
        return _checked(node, quotient, args, either(_strict(args[::-1]), by_zero))

    return translator


def _rounding(node: Call, args: Sequence[Sql]) -> Sql:
    whole = f"{node.op}(({args[0].value})::DOUBLE)"
    in_range = f"({whole} >= -9223372036854775808::DOUBLE AND {whole} < 9223372036854775808::DOUBLE)"
    nan = f"isnan(({args[0].value})::DOUBLE)"
    return Sql(
        f"CASE WHEN {nan} THEN 0::BIGINT ELSE TRY_CAST({whole} AS BIGINT) END",
        either(args[0].raised, f"coalesce(NOT {nan} AND NOT {in_range}, FALSE)"),
    )


def _logarithm(node: Call, args: Sequence[Sql]) -> Sql:
    value = args[0].value
    return Sql(f"CASE WHEN ({value}) > 0 THEN {node.op}({value}) END", args[0].raised)


def _sqrt(_node: Call, args: Sequence[Sql]) -> Sql:
    value = args[0].value
    return Sql(f"CASE WHEN ({value}) < 0 THEN 'nan'::DOUBLE ELSE sqrt({value}) END", args[0].raised)


def _pow(_node: Call, args: Sequence[Sql]) -> Sql:
    base, exponent = (f"({arg.value})" for arg in args)
    no_limit = f"isnan({exponent}) OR (abs({base}) = 1 AND isinf({exponent}))"
    value = f"CASE WHEN {no_limit} THEN {base} * 'nan'::DOUBLE ELSE pow({base}, {exponent}) END"
    return Sql(value, _strict(args))


def _round(node: Call, args: Sequence[Sql]) -> Sql:
    scale = node.args[1]
    known = scale.value if isinstance(scale, Literal) else None
    if is_integer(node.type) and isinstance(known, int) and known >= 0:
        return args[0]
    raise Unsupported("DuckDB does not round as Spark's decimals do.")


# --- casts -------------------------------------------------------------------------------------------------


def _cast(node: Call, args: Sequence[Sql]) -> Sql:
    source, target = node.args[0].type, node.type
    value, raised = args[0]
    number = is_integer(source) or is_float(source)
    if source == target:
        return args[0]
    if is_decimal(source) or is_decimal(target):
        return _decimal_cast(source, target, args[0])
    if target == "boolean" and number:
        return Sql(f"(({value}) <> 0)", raised)
    if target == "string" and (source == "boolean" or is_integer(source)):
        return Sql(f"CAST({value} AS VARCHAR)", raised)
    if target == "double" and (number or source == "boolean"):
        return Sql(f"CAST({value} AS DOUBLE)", raised)
    if target == "double" and source == "timestamp":
        return Sql(f"(({value})::DOUBLE / 1000000::DOUBLE)", raised)
    if is_integer(target) and source == "timestamp":
        into_second = f"((({value})::HUGEINT % 1000000 + 1000000) % 1000000)"
        return _checked(node, f"(({value})::HUGEINT - {into_second}) // 1000000", args)
    if is_integer(target) and is_integer(source):
        return _checked(node, f"({value})::HUGEINT", args)
    if is_integer(target) and source == "boolean":
        return Sql(f"CAST({value} AS BIGINT)", raised)
    if is_integer(target) and is_float(source):
        return _truncation(target, args[0])
    raise Unsupported(f"DuckDB's judge does not cast {source} to {target}.")


def _decimal_cast(source: str, target: str, arg: Sql) -> Sql:
    if target == "double" and is_decimal(source):
        return Sql(f"({arg.value})::VARCHAR::DOUBLE", arg.raised)  # DuckDB's cast is not exact
    if not is_decimal(target) or not (is_decimal(source) or is_integer(source)):
        raise Unsupported(f"DuckDB's judge does not cast {source} to {target}.")
    fitted = f"TRY_CAST(({arg.value}) AS {target})"
    return Sql(fitted, either(arg.raised, f"coalesce(({arg.value}) IS NOT NULL AND {fitted} IS NULL, FALSE)"))


def _truncation(target: str, arg: Sql) -> Sql:
    low, high = integer_range(target)
    bottom, top = f"({low})::DOUBLE", f"({high})::DOUBLE"
    fits = f"(floor({arg.value}) <= {top} AND ceil({arg.value}) >= {bottom})"  # NaN is above every bound
    whole = f"TRY_CAST(trunc({arg.value}) AS HUGEINT)"
    return Sql(
        f"CASE WHEN ({arg.value}) IS NOT NULL THEN TRY_CAST(least({whole}, {high}::HUGEINT) AS BIGINT) END",
        either(arg.raised, f"coalesce(NOT {fits}, FALSE)"),
    )


# --- the table of operators --------------------------------------------------------------------------------


def _pattern(text: str, reached: Callable[[Sequence[Sql]], str] = _strict) -> _Translator:
    """An operator that DuckDB also has, as a format string of its arguments."""

    def translator(_node: Call, args: Sequence[Sql]) -> Sql:
        return Sql("(" + text.format(*(f"({arg.value})" for arg in args)) + ")", reached(args))

    return translator


def _function(name: str) -> _Translator:
    def translator(_node: Call, args: Sequence[Sql]) -> Sql:
        return Sql(f"{name}({', '.join(arg.value for arg in args)})", _all(args))

    return translator


_TRANSLATORS: dict[str, _Translator] = {
    "and": _logic, "or": _logic, "in": _in, "case": _case, "coalesce": _coalesce,
    "not": _pattern("NOT {0}"), "isnull": _pattern("{0} IS NULL"), "isnotnull": _pattern("{0} IS NOT NULL"),
    "ran": lambda _node, args: Sql(f"(NOT {args[0].raised})"),
    "eq": _pattern("{0} = {1}"), "lt": _pattern("{0} < {1}"), "le": _pattern("{0} <= {1}"),
    "gt": _pattern("{0} > {1}"), "ge": _pattern("{0} >= {1}"),
    "same": _pattern("{0} IS NOT DISTINCT FROM {1}", _all),
    "add": _arithmetic("+"), "subtract": _arithmetic("-"), "multiply": _arithmetic("*"),
    "divide": _division("/"), "remainder": _division("%"),
    "negate": lambda node, args: _checked(node, f"-{_operand(node, args[0])}", args),
    "abs": lambda node, args: _checked(node, f"abs({_operand(node, args[0])})", args),
    "floor": _rounding, "ceil": _rounding, "round": _round, "sqrt": _sqrt,
    "ln": _logarithm, "log10": _logarithm,
    "exp": _pattern("exp({0})"), "pow": _pow, "isnan": _pattern("coalesce(isnan({0}), FALSE)"),
    "least": _function("least"), "greatest": _function("greatest"), "cast": _cast,
    "length": _pattern("length({0})"), "startswith": _pattern("starts_with({0}, {1})"),
    "endswith": _pattern("ends_with({0}, {1})"), "contains": _pattern("contains({0}, {1})"),
    "concat": lambda _node, args: Sql("(" + " || ".join(f"({arg.value})" for arg in args) + ")", _all(args)),
}  # fmt: skip
