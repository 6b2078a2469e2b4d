"""Runs compiled loops in the threads of PyTorch's OpenMP.

This module needs numba. GNU's, LLVM's and Intel's OpenMP all have the function that starts a team
of threads (``GOMP_parallel``).
"""

import ctypes
from typing import Any

import torch
from llvmlite import binding, ir
from numba import int64, types
from numba.core import cgutils
from numba.extending import intrinsic

# C names -> symbols for compiled code.
_NAMES = {
    name: f"ownbert_{name}"
    for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
}
_INT, _WORD, _ADDRESS = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
_WORK = ir.FunctionType(ir.VoidType(), [_ADDRESS])


def found() -> bool:
    """Whether PyTorch has such an OpenMP; if so, ``in_team`` can be called from now on."""
    try:
        loaded = ctypes.CDLL(torch._C.__file__)
        addresses = {
            name: ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value for name in _NAMES
        }
    except (AttributeError, OSError):
        return False
    for name, address in addresses.items():
        binding.add_symbol(_NAMES[name], address)
    return True


# By name, because numba does not cache code that depends on a loop object.
LOOPS: dict[str, Any] = {}


@intrinsic(prefer_literal=True)
def in_team(typing, name, parts, args):
    """Call ``LOOPS[name](part, parts, *args)`` for all parts; return whether all completed.

    OpenMP runs one function with one pointer in every thread. The generated function reads the
    loop's arguments at that pointer, and calls the loop on the parts assigned to its thread.

    Args:
        name: name of the loop, a compile-time constant.
        parts: number of parts; with fewer threads, a thread computes several.
        args: tuple of arguments.
    """
    loop = types.Dispatcher(LOOPS[name.literal_value])
    call = loop.get_call_type(typing, (int64, int64, *args), {})

    def generate(context, b, signature, given):
        compiled = loop.dispatcher.overloads[call.args]
        context.add_linking_libs([compiled.library])
        body = context.declare_function(b.module, compiled.fndesc)
        outcome = cgutils.alloca_once_value(b, cgutils.true_bit)
        frame = cgutils.alloca_once_value(b, cgutils.pack_struct(b, [*given[1:], outcome]))

        def function(name, kind):
            return cgutils.get_or_insert_function(b.module, kind, _NAMES[name])

        name = b.module.get_unique_name(f"{b.function.name}.team")
        work = ir.Function(b.module, _WORK, name)
        work.linkage = "internal"
        own = ir.IRBuilder(work.append_basic_block())
        taken = own.load(own.bitcast(work.args[0], frame.type))
        parts, packed, done = (own.extract_value(taken, i) for i in range(3))
        number = ir.FunctionType(_INT, [])
        first, step = (
            own.zext(own.call(function(name, number), []), _WORD)
            for name in ("omp_get_thread_num", "omp_get_num_threads")
        )
        with cgutils.for_range_slice(own, first, parts, step, inc=True) as (part, _):
            given_on = [part, parts, *cgutils.unpack_tuple(own, packed)]
            status, _ = context.call_conv.call_function(
                own, body, call.return_type, call.args, given_on
            )
            with own.if_then(status.is_error):
                own.store(cgutils.false_bit, done)
        own.ret_void()

        fork = ir.FunctionType(ir.VoidType(), [_WORK.as_pointer(), _ADDRESS, _INT, _INT])
        count = b.trunc(given[1], _INT)
        team = [work, b.bitcast(frame, _ADDRESS), count, ir.Constant(_INT, 0)]
        b.call(function("GOMP_parallel", fork), team)
        return b.load(outcome)

    return types.boolean(name, parts, args), generate
