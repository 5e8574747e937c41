"""Objects on their way to another process: modules without their bytes, functions that pickle does not take.

A tensor travels as its shape, strides, dtype and the storage that it shares; ties stay ties. Small tensors and
integers travel with their values, since control flow may depend on them. Functions and classes that cannot be imported
(lambdas, inner functions, and all that a script or a notebook defines) travel as code with the objects that they refer
to, so both processes must run the same Python.
"""

import builtins
import dataclasses
import enum
import functools
import importlib
import io
import marshal
import pickle
import sys
import types
import typing
from typing import Any, Callable, Optional

from .._errors import GaplessError

# Tensors of at most this many elements travel with their values: floats, and whole numbers.
_FLOATS, _INTEGERS = 4096, 1 << 22

_storages: dict[int, Any] = {}
_globals: dict[int, dict[str, Any]] = {}
_NOTHING = "gapless: an empty cell"
# Objects that dataclasses compares by identity.
_SENTINELS = ("MISSING", "KW_ONLY", "_FIELD", "_FIELD_CLASSVAR", "_FIELD_INITVAR", "_HAS_DEFAULT_FACTORY")


def dumps(value: Any) -> bytes:
    """The object as bytes; if something cannot travel, the error names it."""
    out = io.BytesIO()
    try:
        _Pickler(out, protocol=4).dump(value)
    except Exception as error:
        raise GaplessError(
            f"what was passed cannot be sent to the process that estimates: {error}; "
            "pass a callable that makes the model, and functions that refer to nothing but modules, numbers and the like"
        ) from error
    return out.getvalue()


def loads(data: bytes) -> Any:
    _storages.clear()
    _globals.clear()
    return pickle.loads(data)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
            return _reduce_tensor(value, torch)
        if isinstance(value, types.FunctionType):
            return NotImplemented if _importable(value) else _reduce_function(value)
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        if isinstance(value, type) and value.__module__ == "builtins" and not hasattr(builtins, value.__qualname__):
            # The interpreter's own, such as the type of functions, which `types` has under another name.
            return getattr, (types, next(name for name, item in vars(types).items() if item is value))
        if isinstance(value, type):
            return NotImplemented if _importable(value) else _reduce_class(value)
        if isinstance(value, property):
            return property, (value.fget, value.fset, value.fdel, value.__doc__)
        if isinstance(value, (classmethod, staticmethod)):
            return type(value), (value.__func__,)
        if isinstance(value, functools.cached_property):
            return _cached_property, (value.func, value.attrname)
        if isinstance(value, functools._lru_cache_wrapper):
            return NotImplemented if _importable(value) else (_cached, (value.__wrapped__, value.cache_parameters()))
        if isinstance(value, types.MappingProxyType):
            return types.MappingProxyType, (dict(value),)
        if isinstance(value, typing.ForwardRef):
            return typing.ForwardRef, (value.__forward_arg__,)
        if isinstance(value, typing.TypeVar):
            return typing.TypeVar, (value.__name__, *value.__constraints__)
        sentinel = next((name for name in _SENTINELS if getattr(dataclasses, name, None) is value), None)
        return (getattr, (dataclasses, sentinel)) if sentinel else NotImplemented


def _importable(value: Any) -> bool:
    """True if the other process finds it by its name."""
    module = getattr(value, "__module__", None)
    if module in (None, "__main__", "__mp_main__") or module not in sys.modules:
        return False
    found: Any = sys.modules[module]
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


# ---- tensors ----


def _reduce_tensor(value: Any, torch: Any) -> Any:
    storage = value.untyped_storage()
    few = value.numel() <= (_FLOATS if value.is_floating_point() or value.is_complex() else _INTEGERS)
    plain = value.detach()
    known = None
    if few and plain.numel() and plain.device.type != "meta":
        known = bytes(plain.cpu().contiguous().reshape(-1).view(torch.uint8).tolist())
    is_parameter = isinstance(value, torch.nn.Parameter)
    shape = (tuple(value.shape), value.stride(), value.storage_offset())
    extra = {key: item for key, item in vars(value).items() if isinstance(item, (bool, int, float, str))} if vars(value) else {}
    return _tensor, (storage._cdata, storage.nbytes(), value.dtype, shape, value.requires_grad, is_parameter, known, extra)


def _tensor(key: int, size: int, dtype: Any, shape: Any, grad: bool, is_parameter: bool, known: Optional[bytes], extra: "dict[str, Any]") -> Any:
    import torch

    if key not in _storages:
        # The kernel gives the process no pages for memory that is never written.
        _storages[key] = torch.empty(size, dtype=torch.uint8).untyped_storage()
    sizes, strides, offset = shape
    made = torch.empty(0, dtype=dtype).set_(_storages[key], offset, sizes, strides)
    if known is not None:
        made.copy_(torch.frombuffer(bytearray(known), dtype=dtype).reshape(sizes))
    made = torch.nn.Parameter(made, requires_grad=grad) if is_parameter else made.requires_grad_(grad)
    made.__dict__.update(extra)
    return made


# ---- functions ----


def _names(code: types.CodeType) -> "set[str]":
    """Names that a function and those inside it look up."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


def _reduce_function(value: types.FunctionType) -> Any:
    cells = value.__closure__ or ()
    used = {name: value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__}
    state = (used, [_content(cell) for cell in cells], value.__defaults__, value.__kwdefaults__, value.__dict__)
    made = (marshal.dumps(value.__code__), id(value.__globals__), len(cells), value.__qualname__)
    return _function, made, state, None, None, _fill_function


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING


def _function(code: bytes, key: int, cells: int, name: str) -> types.FunctionType:
    shared = _globals.setdefault(key, {"__builtins__": builtins, "__name__": "__gapless__"})
    made = types.FunctionType(marshal.loads(code), shared, closure=tuple(types.CellType() for _ in range(cells)))
    made.__qualname__ = name
    return made


def _fill_function(made: types.FunctionType, state: Any) -> None:
    used, cells, defaults, keywords, more = state
    made.__globals__.update(used)
    for cell, content in zip(made.__closure__ or (), cells):
        if not (isinstance(content, str) and content == _NOTHING):
            cell.cell_contents = content
    made.__defaults__, made.__kwdefaults__ = defaults, keywords
    made.__dict__.update(more)


# ---- classes ----

_NOT_SHIPPED = {"__dict__", "__weakref__", "__doc__", "__abstractmethods__", "_abc_impl", "__firstlineno__", "__static_attributes__"}
# Members that an enumeration gets as it is made.
_OF_ENUMS = {"__new__", "__format__", "__reduce_ex__", "_generate_next_value_"}


def _reduce_class(value: type) -> Any:
    if issubclass(value, enum.Enum):
        return _reduce_enum(value)
    state = {key: item for key, item in vars(value).items() if key not in _NOT_SHIPPED and not isinstance(item, types.MemberDescriptorType)}
    generic = vars(value).get("__orig_bases__")
    return _class, (type(value), value.__name__, value.__bases__, value.__qualname__, generic), state, None, None, _fill_class


def _reduce_enum(value: "type[enum.Enum]") -> Any:
    members = {name: member.value for name, member in value.__members__.items()}
    plain = (types.FunctionType, property, classmethod, staticmethod)
    state = {key: item for key, item in vars(value).items() if isinstance(item, plain) and key not in _OF_ENUMS}
    return _enum, (type(value), value.__name__, value.__bases__, members), state, None, None, _fill_class


def _enum(kind: Any, name: str, bases: "tuple[type, ...]", members: "dict[str, Any]") -> Any:
    names = kind.__prepare__(name, bases)
    for member, item in members.items():
        names[member] = item
    names["__module__"] = "__gapless__"
    return kind(name, bases, names)


def _cached_property(function: Any, name: str) -> Any:
    made: Any = functools.cached_property(function)
    made.__set_name__(None, name)
    return made


def _cached(function: Any, settings: "dict[str, Any]") -> Any:
    return functools.lru_cache(**settings)(function)


def _class(kind: Callable[..., type], name: str, bases: "tuple[type, ...]", qualname: str, generic: Any) -> type:
    # typing.Generic reads the original bases while the class is made.
    more = {} if generic is None else {"__orig_bases__": generic}
    return kind(name, bases, {"__qualname__": qualname, "__module__": "__gapless__", **more})


def _fill_class(made: type, state: "dict[str, Any]") -> None:
    for key, item in state.items():
        if key not in ("__module__", "__qualname__"):
            setattr(made, key, item)
