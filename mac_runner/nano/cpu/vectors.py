"""Vectors of 16 float32 for compiled code, what is made of them for rows and products, and how it is compiled.

Each operation is made of LLVM's instructions, and numba compiles the functions that use them. So the order of every sum
is fixed here: no compiler may change it, and a row has the same bits whatever is computed beside it.

Arrays are flat; those of bfloat16 come as int16.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import cache, reduce
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias

import numba
import numpy as np
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

Floats: TypeAlias = Any
"""A flat array of float32, or of bfloat16 as int16."""
Ints: TypeAlias = Any
"""An array of int64."""
_HERE = Path(__file__)
LANES = 16
_ROWS = (4, 2, 1)
_TOTALS = 24 if binding.get_host_cpu_features().get("avx512f", False) else 6
"""The vectors that a processor's registers hold beside the operands: 32 of 16 numbers, or 16 of 8."""
_FLOAT, _INT, _HALF = ir.FloatType(), ir.IntType(32), ir.IntType(16)
_FLOATS, _INTS, _HALVES = (ir.VectorType(kind, LANES) for kind in (_FLOAT, _INT, _HALF))
_LOG2_E = 1.4426950408889634
_EXP2 = (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
"""2 ** x for |x| <= 0.5 as a polynomial: ln(2) ** k / k!, from k = 6 down. The next is below float32's last bit."""

_ROUNDING = 1.5 * 2**23
"""Between 2 ** 23 and 2 ** 24 float32 has the whole numbers alone."""


def compiled(*, parallel: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make numba compile a function at its first call, to run without Python's lock.

    Compiled code is kept in NUMBA_CACHE_DIR if it is set, else beside the package or in the user's cache. Where nothing
    can be written, each process compiles again. Numba notices changes of the function's own file; the name of the
    folder depends on this one, of which every kernel is made.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        place, before = _place(), numba.config.CACHE_DIR
        # Numba reads its folder when a function is decorated.
        numba.config.CACHE_DIR = str(place or "")
        try:
            kernel: Callable[..., Any] = numba.njit(nogil=True, parallel=parallel, cache=place is not None)(function)
        finally:
            numba.config.CACHE_DIR = before
        if place is not None and hasattr(kernel, "_cache"):  # NUMBA_DISABLE_JIT gives the function itself.
            _number_by_key(kernel)
        return kernel

    return decorate


def _number_by_key(kernel: Any) -> None:
    """Number files by what they hold, and write each before the index names it.

    Numba counts. Two processes that compile at once take one number, and one of them would be given the other's code.
    """
    files = kernel._cache._cache_file

    def save(key: object, data: object) -> None:
        digest = hashlib.sha256(repr((files._version, files._source_stamp, key)).encode()).digest()
        name = files._data_name(int.from_bytes(digest[:8]))
        files._save_data(name, data)
        files._save_index({**files._load_index(), key: name})

    files.save = save


@cache
def _place() -> Path | None:
    digest = hashlib.sha256(_HERE.read_bytes()).hexdigest()
    chosen, home = numba.config.CACHE_DIR, os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    parents = [Path(chosen)] if chosen else [_HERE.parent / "__pycache__", Path(home).expanduser() / "mac_runner"]
    for parent in parents:
        place = parent / f"kernels-{digest[:16]}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=place):
                return place
        except OSError:
            continue
    return None


def flat(tensor: torch.Tensor) -> Floats:
    """The same memory, in one dimension; bfloat16 as int16. Raises ValueError for memory with gaps."""
    if not tensor.is_contiguous():
        raise ValueError(f"a tensor of {tuple(tensor.shape)} that is not contiguous")
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().reshape(-1)


class Vector(types.Type):
    """16 float32 in one register."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _FLOATS)


_vector, _float, _index = Vector(), types.float32, types.intp


# What follows is called by compiled code. The compiler runs each function once, with the types of its arguments. The
# function returns the operation's own types and a generator of its instructions.


@intrinsic
def zeros(typing: Any) -> Any:
    return _vector(), lambda context, builder, signature, arguments: _same(0.0)


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """`array[index : index + 16]`, as float32."""
    return _vector(array, _index), _reading(array, _FLOATS)


@intrinsic
def store(typing: Any, array: Any, index: Any, vector: Any) -> Any:
    """`array[index : index + 16] = vector`, the array being float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        destination, start, value = arguments
        builder.store(value, _address(context, builder, array, destination, start, _FLOATS), align=4)
        return context.get_dummy_value()

    return types.void(array, _index, _vector), generate


@intrinsic
def get(typing: Any, array: Any, index: Any) -> Any:
    return _float(array, _index), _reading(array, _FLOAT)


@intrinsic
def put(typing: Any, array: Any, index: Any, number: Any) -> Any:
    """`array[index] = number`, rounded to the nearest number of the array's type, ties to even."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        destination, place, value = arguments
        if array.dtype == types.int16:
            value = _narrow(builder, value)
        builder.store(value, _address(context, builder, array, destination, place, value.type))
        return context.get_dummy_value()

    return types.void(array, _index, _float), generate


@intrinsic
def add(typing: Any, a: Any, b: Any) -> Any:
    return _vector(_vector, _vector), lambda context, builder, signature, arguments: builder.fadd(*arguments)


@intrinsic
def maximum(typing: Any, a: Any, b: Any) -> Any:
    return _vector(_vector, _vector), lambda context, builder, signature, arguments: _larger(builder)(*arguments)


@intrinsic
def sum_of(typing: Any, vector: Any) -> Any:
    return _float(_vector), lambda context, builder, signature, arguments: _fold(builder, arguments[0], builder.fadd)


@intrinsic
def max_of(typing: Any, vector: Any) -> Any:
    return _float(_vector), lambda context, builder, signature, arguments: _fold(
        builder, arguments[0], _larger(builder)
    )


@intrinsic
def exp_from(typing: Any, vector: Any, origin: Any) -> Any:
    """`e ** (vector - origin)`; 0 where that is below the normal numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        distance = builder.fsub(arguments[0], _spread(builder, arguments[1]))
        power = builder.fmul(distance, _same(_LOG2_E))
        # To add this number is to round, and leaves the whole number in the lowest bits.
        rounded = builder.fadd(power, _same(_ROUNDING))
        rest, result = builder.fsub(power, builder.fsub(rounded, _same(_ROUNDING))), _same(_EXP2[0])
        for factor in _EXP2[1:]:
            result = _fma(builder, result, rest, _same(factor))
        biased = builder.add(builder.bitcast(rounded, _INTS), ir.Constant(_INTS, [127] * LANES))
        scale = builder.bitcast(builder.shl(biased, ir.Constant(_INTS, [23] * LANES)), _FLOATS)
        # Not the other way around: NaN must stay NaN.
        is_tiny = builder.fcmp_ordered("<", power, _same(-126.0))
        return builder.select(is_tiny, _same(0.0), builder.fmul(result, scale))

    return _vector(_vector, _float), generate


def make_panel(columns: int, sums: int) -> Any:
    """Make a function that adds to `out[row, column]` the sum of `x[row, i] * y[i, column]` over `count` values of `i`.

    Rows are numbers, as many as `rows_at_once` says; columns are vectors of 16. `x_row`, `y_step` and `out_row` are the
    distances between rows. Products go to `sums` sums in turn, which are added in the end; `count` is a multiple of
    `sums`. A processor keeps `sums` times rows times columns products under way. The result for one row and column does
    not depend on the others.
    """

    @intrinsic
    def panel(
        typing: Any, rows: Any, x: Any, x0: Any, x_row: Any, y: Any, y0: Any, y_step: Any, count: Any, out: Any,
        out0: Any, out_row: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows_, x_, x0_, x_row_, y_, y0_, y_step_, count_, out_, out0_, out_row_ = arguments

            def at(start: Any, step: Any, times: int) -> Any:
                return builder.add(start, builder.mul(step, ir.Constant(start.type, times)))

            def place(row: int, column: int) -> Any:
                index = at(at(out0_, out_row_, row), ir.Constant(out0_.type, LANES), column)
                return _address(context, builder, out, out_, index, _FLOATS)

            def generate_for(num_rows: int, columns_now: range, turns_now: range) -> None:
                cells = [(row, column) for row in range(num_rows) for column in columns_now]
                totals = {
                    (cell, turn): cgutils.alloca_once_value(
                        builder, _same(0.0) if turn else builder.load(place(*cell), align=4)
                    )
                    for cell in cells
                    for turn in turns_now
                }
                turns = ir.Constant(count_.type, sums)
                with cgutils.for_range(builder, builder.udiv(count_, turns)) as loop:
                    for turn in turns_now:
                        i = builder.add(builder.mul(loop.index, turns), ir.Constant(count_.type, turn))
                        first = builder.add(y0_, builder.mul(i, y_step_))
                        lanes = ir.Constant(first.type, LANES)
                        vectors = {
                            column: _load(context, builder, y, _FLOATS, y_, at(first, lanes, column))
                            for column in columns_now
                        }
                        numbers = [
                            _load(context, builder, x, _FLOAT, x_, builder.add(at(x0_, x_row_, row), i))
                            for row in range(num_rows)
                        ]
                        for row, column in cells:
                            total = totals[(row, column), turn]
                            number = _spread(builder, numbers[row])
                            builder.store(_fma(builder, number, vectors[column], builder.load(total)), total)
                for cell in cells:
                    parts = [builder.load(totals[cell, turn]) for turn in turns_now]
                    if turns_now[0]:
                        parts.insert(0, builder.load(place(*cell), align=4))
                    builder.store(reduce(builder.fadd, parts), place(*cell), align=4)

            for num_rows in _ROWS:
                with builder.if_then(builder.icmp_signed("==", rows_, ir.Constant(rows_.type, num_rows))):
                    for columns_now, turns_now in _passes(num_rows, columns, sums):
                        generate_for(num_rows, columns_now, turns_now)
            return context.get_dummy_value()

        signature = types.void(_index, x, _index, _index, y, _index, _index, _index, out, _index, _index)
        return signature, generate

    return panel


def _passes(num_rows: int, columns: int, sums: int) -> Iterator[tuple[range, range]]:
    """The columns and sums of a panel in passes whose totals fit into registers; no result depends on them."""
    room = max(_TOTALS // num_rows, 1)
    turns = sums if sums <= room else 1
    wide = min(columns, max(room // turns, 1))
    for column in range(0, columns, wide):
        for turn in range(0, sums, turns):
            yield range(column, min(column + wide, columns)), range(turn, turn + turns)


@compiled()
def rows_at_once(most: int) -> int:
    """The number of rows that a panel takes, at most `most`: 4, 2 or 1."""
    return 4 if most >= 4 else 2 if most >= 2 else 1


@compiled()
def inverse_root_mean_square(row: Floats, squares: Floats, dim: int, eps: float) -> np.float32:
    """1 over the root of the mean square of `dim` numbers plus `eps`.

    `squares` is scratch: `dim` numbers, and zeros behind them up to a whole vector.
    """
    for i in range(dim):
        squares[i] = row[i] * row[i]
    total = zeros()
    for i in range(0, dim, LANES):
        total = add(total, load(squares, i))
    return np.float32(1.0) / np.sqrt(sum_of(total) / np.float32(dim) + np.float32(eps))


def _same(value: float) -> ir.Constant:
    return ir.Constant(_FLOATS, [value] * LANES)


def _spread(builder: Any, number: Any) -> Any:
    """A vector that holds one number 16 times."""
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INTS, [0] * LANES))


def _fold(builder: Any, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the halves of a vector until one number is left."""
    width = LANES
    while width > 1:
        width //= 2
        kind = ir.VectorType(_INT, width)
        low, high = (ir.Constant(kind, list(range(first, first + width))) for first in (0, width))
        vector = combine(builder.shuffle_vector(vector, vector, low), builder.shuffle_vector(vector, vector, high))
    return builder.extract_element(vector, ir.Constant(_INT, 0))


def _larger(builder: Any) -> Callable[[Any, Any], Any]:
    return lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """`a * b + c`, rounded once."""
    return _llvm(builder, "llvm.fma.v16f32", a, b, c)


def _llvm(builder: Any, name: str, *arguments: Any) -> Any:
    kind = ir.FunctionType(_FLOATS, [argument.type for argument in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, arguments)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any, element: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), element.as_pointer())


def _reading(array_type: Any, wanted: Any) -> Callable[..., Any]:
    return lambda context, builder, signature, arguments: _load(context, builder, array_type, wanted, *arguments)


def _load(context: Any, builder: Any, array_type: Any, wanted: Any, array: Any, index: Any) -> Any:
    """A float32, or 16 of them; bfloat16 is the upper half of one."""
    if array_type.dtype != types.int16:
        return builder.load(_address(context, builder, array_type, array, index, wanted), align=4)
    halves, ints, shift = (_HALVES, _INTS, [16] * LANES) if wanted == _FLOATS else (_HALF, _INT, 16)
    loaded = builder.load(_address(context, builder, array_type, array, index, halves), align=2)
    return builder.bitcast(builder.shl(builder.zext(loaded, ints), ir.Constant(ints, shift)), wanted)


def _narrow(builder: Any, number: Any) -> Any:
    """A float32's upper half, after rounding."""
    bits, half = builder.bitcast(number, _INT), ir.Constant(_INT, 16)
    is_odd = builder.and_(builder.lshr(bits, half), ir.Constant(_INT, 1))
    rounded = builder.add(bits, builder.add(is_odd, ir.Constant(_INT, 0x7FFF)))
    is_number = builder.fcmp_ordered("==", number, number)
    kept = builder.select(is_number, rounded, ir.Constant(_INT, 0x7FC0_0000))
    return builder.trunc(builder.lshr(kept, half), _HALF)


def rms_norm(rows: torch.Tensor, weights: torch.Tensor, eps: float) -> torch.Tensor:
    """Divide each of `rows` [rows, dim] by the root of its mean square, and multiply it by `weights` [dim]."""
    if rows.device.type != "cpu":
        return torch.nn.functional.rms_norm(rows, weights.shape, weights, eps)
    result = torch.empty(rows.shape, dtype=rows.dtype)
    _normalize_rows(flat(rows.contiguous()), flat(weights), eps, flat(result))
    return result


def argmax_and_logsumexp(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The index of each row's largest number, the first of several, and the logarithm of the sum of its exponentials.

    `logits` is [rows, vocabulary], in float32. Where a row holds NaN or an infinity, the logarithm is not finite.
    """
    if logits.device.type != "cpu":
        return logits.argmax(-1), logits.logsumexp(-1)
    places, sums = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits))
    _summarize(flat(logits.contiguous()), places.numpy(), sums.numpy())
    return places, sums


@compiled()
def _normalize_rows(rows: Floats, weights: Floats, eps: float, out: Floats) -> None:
    dim = len(weights)
    row, squares = np.empty(dim + LANES, np.float32), np.zeros(dim + LANES, np.float32)
    for start in range(0, len(rows), dim):
        for i in range(dim):
            row[i] = get(rows, start + i)
        factor = inverse_root_mean_square(row, squares, dim, eps)
        for i in range(dim):
            put(out, start + i, row[i] * factor * get(weights, i))


@compiled()
def _summarize(logits: Floats, places: Ints, sums: Floats) -> None:
    width = len(logits) // len(places)
    whole = width // LANES * LANES
    rest = np.empty(LANES, np.float32)
    for row in range(len(places)):
        start = row * width
        # The numbers behind the last whole vector.
        rest[:] = -np.inf
        for i in range(whole, width):
            rest[i - whole] = logits[start + i]
        largest = load(rest, 0)
        for i in range(start, start + whole, LANES):
            largest = maximum(largest, load(logits, i))
        top, total = max_of(largest), exp_from(load(rest, 0), max_of(largest))
        for i in range(start, start + whole, LANES):
            total = add(total, exp_from(load(logits, i), top))
        sums[row] = top + np.log(sum_of(total))
        places[row] = 0
        for i in range(width):
            if logits[start + i] == top:
                places[row] = i
                break
