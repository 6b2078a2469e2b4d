# pyright: reportCallIssue=false, reportArgumentType=false
"""Loops compiled by numba: everything in training on a CPU besides matrix products.

This module needs numba (the extra ``fast``); ``ownbert.nn.fast.compiled`` imports it if available
and passes NumPy views of tensors. Elements are float32, or bfloat16 as the upper half of float32
(uint16); computations are in float32. Each function computes ``part`` of ``parts`` equal shares of
the work, one per thread.

T tokens, D hidden, B sequences, S queries and S' keys of each, H heads, K head size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from llvmlite import ir
from numba import float32, int32, int64, njit, uint32, void
from numba.extending import intrinsic

from ownbert.nn.fast import openmp

# Sums may be reordered for vectorisation; flags that assume finite numbers are not used, because
# training must notice infinities and NaN.
_MATH = {"reassoc", "contract", "arcp", "nsz"}
_inlined = njit(inline="always", error_model="numpy", fastmath=_MATH)


@dataclass(frozen=True)
class Loop:
    """A compiled loop.

    Args:
        part: (part, parts, *args), computes one part.
        parts: (parts, *args), computes all parts in the threads of PyTorch's OpenMP.
    """

    part: Callable[..., None]
    parts: Callable[..., None]


def _compiled(function):
    """Compile for the types of the first call."""
    name = function.__name__
    openmp.LOOPS[name] = loop = _kept(function)

    def parts(parts, *args):
        if not openmp.in_team(name, parts, args):
            raise MemoryError("a compiled loop is out of memory")

    return Loop(loop, _kept(parts))


def _kept(function):
    """Compile, and cache on disk if possible."""
    settings = {"nogil": True, "error_model": "numpy", "fastmath": _MATH}
    try:
        return njit(cache=True, **settings)(function)
    except RuntimeError:  # no writable cache folder
        return njit(**settings)(function)


@intrinsic
def _bits_of(context, x):
    """Reinterpret float32 as uint32."""
    return uint32(float32), lambda context, b, _, args: b.bitcast(args[0], ir.IntType(32))


@intrinsic
def _of_bits(context, x):
    """Reinterpret uint32 as float32."""
    return float32(uint32), lambda context, b, _, args: b.bitcast(args[0], ir.FloatType())


@intrinsic
def _to_float32(context, x):
    """Convert an element to float32."""

    def generate(context, b, signature, args):
        if x == float32:
            return args[0]
        bits = b.shl(b.zext(args[0], ir.IntType(32)), ir.Constant(ir.IntType(32), 16))
        return b.bitcast(bits, ir.FloatType())

    return float32(x), generate


@intrinsic
def _from_float32(context, x, value):
    """Convert float32 to the element type of ``x``, rounded to nearest, ties to even."""

    def generate(context, b, signature, args):
        if x == float32:
            return args[1]
        word, half = ir.IntType(32), ir.Constant(ir.IntType(32), 0x7FFF)
        shift, one = ir.Constant(word, 16), ir.Constant(word, 1)
        bits = b.bitcast(args[1], word)
        odd = b.and_(b.lshr(bits, shift), one)
        return b.trunc(b.lshr(b.add(b.add(bits, half), odd), shift), ir.IntType(16))

    return x(x, float32), generate


@intrinsic
def _if(context, x, keep):
    """An element, or 0 where ``keep`` is 0, by bit operations, which are faster than a branch."""

    def generate(context, b, signature, args):
        kind = ir.IntType(32 if x == float32 else 16)
        bits = b.bitcast(args[0], kind) if x == float32 else args[0]
        bits = b.and_(bits, b.neg(b.zext(args[1], kind)))
        return b.bitcast(bits, ir.FloatType()) if x == float32 else bits

    return x(x, keep), generate


# Padding around arrays that a loop with a sum writes to: LLVM does not vectorise if they are closer
# than a few registers to an array that the loop reads, and the sum would depend on addresses.
_GAP = 256

# Block size of ``_transpose_tile``.
_SIDE = 16


@intrinsic
def _transpose_tile(context, source, width, target, height):
    """Write the transpose of 16 x 16 elements of 16 bits.

    Row i is a vector; exchanging the two off-diagonal quarters of all blocks of size 16, 8, 4 and 2
    transposes the matrix.

    Args:
        source: address of the first element to read.
        width: elements between rows of ``source``.
        target: address of the first element to write.
        height: elements between rows of ``target``.
    """

    def generate(context, b, signature, args):
        word, half = ir.IntType(64), ir.IntType(16)
        vector, places = ir.VectorType(half, _SIDE), ir.VectorType(ir.IntType(32), _SIDE)

        def row(start, step, i):
            bytes_on = b.mul(step, ir.Constant(word, 2 * i))
            return b.inttoptr(b.add(start, bytes_on), vector.as_pointer())

        rows = [b.load(row(args[0], args[1], i), align=2) for i in range(_SIDE)]
        indices = range(_SIDE)
        for side in (8, 4, 2, 1):
            upper = [_SIDE + j - side if j & side else j for j in indices]
            lower = [_SIDE + j if j & side else j + side for j in indices]
            upper, lower = ir.Constant(places, upper), ir.Constant(places, lower)
            for i in (i for i in indices if not i & side):
                pair = rows[i], rows[i + side]
                rows[i] = b.shuffle_vector(*pair, upper)
                rows[i + side] = b.shuffle_vector(*pair, lower)
        for i in indices:
            b.store(rows[i], row(args[2], args[3], i), align=2)
        return context.get_dummy_value()

    return void(int64, int64, int64, int64), generate


@_inlined
def _exp(x):
    """e^x of a float32 of at most 0, accurate to 2 units in the last place; below -87, e^-87.

    x = n log 2 + r; e^r by the polynomial of Cephes' expf, 2^n by the bits of the exponent.
    """
    x = float32(-87.0) if x < float32(-87.0) else x  # max() is not vectorised; keeps NaN
    n = int32(x * float32(1.4426950408889634) - float32(0.5))  # truncation rounds to nearest
    r = x - float32(n) * float32(0.693359375) + float32(n) * float32(2.12194440e-4)
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    p = p * r * r + r + float32(1.0)
    return p * _of_bits(uint32((n + int32(127)) << int32(23)))


@_inlined
def _ordered(bits):
    """Map bits of a float32 to an int32 of the same order, and back, because an integer maximum is
    vectorised."""
    return bits ^ ((bits >> int32(31)) & int32(0x7FFFFFFF))


@_compiled
def add_and_norm(part, parts, x, y, keep, scale, weight, bias, eps, out, normed, rstd):
    """out = norm(x + dropout(y)) weight + bias; ``normed`` is before weight and bias; (T, D) each.

    Args:
        keep: (T, D), 0 where y is dropped, 1 where it is kept and scaled; None: no dropout.
        rstd: (T), reciprocal of the standard deviation.
    """
    rows, size = x.shape
    line = np.empty(size + 2 * _GAP, np.float32)[_GAP : _GAP + size]
    over = float32(1.0) / float32(size)
    for t in range(rows * part // parts, rows * (part + 1) // parts):
        xs, ys, outs, kept = x[t], y[t], out[t], normed[t]
        total = float32(0.0)
        if keep is None:
            for d in range(size):
                line[d] = _to_float32(xs[d]) + _to_float32(ys[d])
                total += line[d]
        else:
            left = keep[t]
            for d in range(size):
                line[d] = _to_float32(xs[d]) + _to_float32(ys[d]) * (scale * float32(left[d]))
                total += line[d]
        mean = total * over
        total = float32(0.0)
        for d in range(size):
            line[d] -= mean
            total += line[d] * line[d]
        r = float32(1.0) / np.sqrt(total * over + eps)
        rstd[t] = r
        for d in range(size):
            value = line[d] * r
            kept[d] = _from_float32(kept[d], value)
            outs[d] = _from_float32(outs[d], value * weight[d] + bias[d])


@_compiled
def add_and_norm_backward(
    part, parts, grad, normed, keep, scale, weight, rstd, of_x, of_y, of_weight, of_bias
):
    """The gradients of the inputs of ``add_and_norm``.

    Args:
        grad: (T, D), gradient of ``out``.
        of_x: (T, D), gradient of ``x``.
        of_y: (T, D), gradient of ``y``.
        of_weight, of_bias: (parts, D), initially zero; the gradients are the sums over parts.
    """
    rows, size = grad.shape
    over = float32(1.0) / float32(size)
    weights, biases = of_weight[part], of_bias[part]
    for t in range(rows * part // parts, rows * (part + 1) // parts):
        grads, kept, xs = grad[t], normed[t], of_x[t]
        for d in range(size):
            weights[d] += _to_float32(grads[d]) * _to_float32(kept[d])
        for d in range(size):
            biases[d] += _to_float32(grads[d])
        total, product = float32(0.0), float32(0.0)
        for d in range(size):
            scaled = _to_float32(grads[d]) * weight[d]
            total += scaled
            product += scaled * _to_float32(kept[d])
        total, product, r = total * over, product * over, rstd[t]
        for d in range(size):
            scaled = _to_float32(grads[d]) * weight[d]
            xs[d] = _from_float32(xs[d], (scaled - total - _to_float32(kept[d]) * product) * r)
        ys = of_y[t]
        if keep is None:
            for d in range(size):
                ys[d] = _from_float32(ys[d], _to_float32(xs[d]))
        else:
            left = keep[t]
            for d in range(size):
                ys[d] = _from_float32(ys[d], _to_float32(xs[d]) * (scale * float32(left[d])))


@_compiled
def select(part, parts, xs, rows, factors, outs):
    """out = factor x[rows], for several arrays: (N, K), (rows) -> (at least rows, K)."""
    for n in range(len(xs)):
        x, index, out, factor = xs[n], rows[n], outs[n], factors[n]
        count = len(index)
        for i in range(count * part // parts, count * (part + 1) // parts):
            source, line = x[index[i]], out[i]
            for k in range(len(source)):
                line[k] = _from_float32(line[k], factor * _to_float32(source[k]))


@_compiled
def transpose(part, parts, x, out):
    """out = x^T: (N, M) -> (M, N), 16-bit elements."""
    height, width = x.shape
    source, target = x.ctypes.data, out.ctypes.data
    down, right = height // _SIDE, width // _SIDE
    for j in range(right * part // parts, right * (part + 1) // parts):
        for i in range(down):
            first = source + 2 * _SIDE * (i * width + j)
            _transpose_tile(first, width, target + 2 * _SIDE * (j * height + i), height)
    if part == 0:  # the remainder outside of full blocks
        for i in range(height):
            for j in range(0 if i >= down * _SIDE else right * _SIDE, width):
                out[j, i] = x[i, j]


@_compiled
def softmax(part, parts, blocks, scores, keep, kept):
    """Compute attention weights in place of scores; ``kept`` are those left by dropout.

    Args:
        blocks: (B H, 6) for each head of each sequence: offset of its scores, S, S', number of keys
            visible to the first query, increment for each further query, and maximum number;
            later keys get no weight.
        scores, kept: (S, S') for each block.
        keep: 0 where a weight is dropped, 1 elsewhere; None: no dropout, and ``kept`` is None.
    """
    line = np.empty(blocks[:, 2].max(), np.float32)
    for b in range(part, len(blocks), parts):  # round-robin, since blocks are sorted by length
        start, queries, keys, seen, more, most = blocks[b]
        for i in range(queries):
            first, end = start + i * keys, start + (i + 1) * keys
            row_scores, last = scores[first:end], max(1, min(seen + i * more, most))
            largest = int32(-(2**31))
            for j in range(last):
                line[j] = _to_float32(row_scores[j])
                place = _ordered(int32(_bits_of(line[j])))
                largest = place if place > largest else largest
            highest = _of_bits(uint32(_ordered(largest)))
            total = float32(0.0)
            for j in range(last):
                line[j] = _exp(line[j] - highest)
                total += line[j]
            over = float32(1.0) / total
            for j in range(last):
                row_scores[j] = _from_float32(row_scores[j], line[j] * over)
            for j in range(last, keys):
                row_scores[j] = _from_float32(row_scores[j], float32(0.0))
            if keep is not None:
                left, draws = kept[first:end], keep[first:end]
                for j in range(keys):
                    left[j] = _if(row_scores[j], draws[j])


@_compiled
def keep_some(part, parts, x, keep, out):
    """out = x where ``keep`` is 1, 0 where it is 0: (N) each."""
    first, end = len(x) * part // parts, len(x) * (part + 1) // parts
    x, keep, out = x[first:end], keep[first:end], out[first:end]
    for i in range(len(x)):  # from 0: possibly negative indices prevent vectorisation
        out[i] = _if(x[i], keep[i])


@_compiled
def softmax_backward(part, parts, blocks, weights, keep, grad):
    """Replace the gradient of the kept weights by that of the scores, in place; see ``softmax``."""
    for b in range(part, len(blocks), parts):
        start, queries, keys = blocks[b, :3]
        for i in range(queries):
            first, end = start + i * keys, start + (i + 1) * keys
            row_weights, above = weights[first:end], grad[first:end]
            total = float32(0.0)
            if keep is None:
                for j in range(keys):
                    total += _to_float32(row_weights[j]) * _to_float32(above[j])
                for j in range(keys):
                    above[j] = _from_float32(
                        above[j], _to_float32(row_weights[j]) * (_to_float32(above[j]) - total)
                    )
            else:
                draws = keep[first:end]
                for j in range(keys):
                    total += _to_float32(row_weights[j]) * _to_float32(above[j]) * float32(draws[j])
                for j in range(keys):
                    left = _to_float32(above[j]) * float32(draws[j])
                    above[j] = _from_float32(above[j], _to_float32(row_weights[j]) * (left - total))
