"""Tensor expressions between numbers and the bits of small types, and bit casts: integer arithmetic on float32's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from aotc.ir.types import TensorType
from aotc.lowering.ops import common
from aotc.lowering.ops.common import Expr, Expression, Scope, cast, dtype_of
from aotc.ops.small import BITS, FORMATS, Format

NAN, INFINITY, SIGN = 0x7FC00000, 0x7F800000, 0x80000000


def _int(value: int) -> Expr:
    return tirx.const(value - 2**32 if value >= 2**31 else value, "int32")


def _bits(x: Expr) -> Expr:
    return tirx.reinterpret("int32", x)


def _float(bits: Expr) -> Expr:
    return tirx.reinterpret("float32", bits)


def _and(x: Expr, mask: int) -> Expr:
    return tirx.bitwise_and(x, _int(mask))


def _decode_float(bits: Expr, form: Format) -> Expr:
    """``bits``, int32, as float32."""
    mantissa, top = form.mantissa, form.sign - 1
    magnitude = _and(bits, top)
    shifted = tirx.shift_left(magnitude, _int(23 - mantissa))
    if form.exponent == 8:
        value = shifted  # float32's own exponent, subnormals and specials too
    else:
        normal = shifted + _int((127 - form.bias) << 23)
        smallest = tirx.const(2.0 ** (1 - form.bias - mantissa), "float32")
        value = tirx.Select(magnitude < _int(1 << mantissa), _bits(tirx.Cast("float32", magnitude) * smallest), normal)
        if form.specials == "ieee":
            value = tirx.Select(magnitude >= _int(form.largest + 1), tirx.bitwise_or(shifted, _int(INFINITY)), value)
        elif form.specials == "fn":
            value = tirx.Select(magnitude == _int(form.nan), _int(NAN), value)
    sign = tirx.shift_left(_and(bits, form.sign), _int(31 - form.exponent - mantissa))
    value = tirx.bitwise_or(value, sign)
    return _float(tirx.Select(_and(bits, form.sign | top) == _int(form.sign), _int(NAN), value) if form.specials == "fnuz" else value)


def decoded_bfloat(bits: Expr) -> Expr:
    """The float32 of the bits of a bfloat16, uint16."""
    return _decode_float(cast(bits, "int32"), FORMATS["bfloat16"])


def _decode_e8m0(bits: Expr) -> Expr:
    power = tirx.Select(bits == _int(0), _int(0x400000), tirx.shift_left(bits, _int(23)))
    return _float(tirx.Select(bits == _int(255), _int(NAN), power))


def _decode_integer(bits: Expr, dtype: str) -> Expr:
    width = BITS[dtype]
    if dtype.startswith("u"):
        return _and(bits, 2**width - 1)
    return tirx.shift_right(tirx.shift_left(bits, _int(32 - width)), _int(32 - width))


def _decode(x: Expr, attrs: Any) -> Expr:
    bits = cast(x, "int32")
    if attrs.dtype in FORMATS:
        return _decode_float(bits, FORMATS[attrs.dtype])
    return _decode_e8m0(bits) if attrs.dtype == "float8_e8m0fnu" else _decode_integer(bits, attrs.dtype)


def _encode_float(x: Expr, form: Format, saturate: bool) -> Expr:
    """float32 as bits in int32, rounded half to even."""
    drop = 23 - form.mantissa
    bits = _bits(x)
    magnitude = _and(bits, SIGN - 1)
    half = _int((1 << (drop - 1)) - 1) + _and(tirx.shift_right(magnitude, _int(drop)), 1)
    code = tirx.shift_right(magnitude + half, _int(drop))
    if form.exponent < 8:
        code = code - _int((127 - form.bias) << form.mantissa)
        # Below the least normal number, adding 2**23 smallest steps rounds to a whole number of them.
        shift = tirx.const(2.0 ** (1 - form.bias - form.mantissa + 23), "float32")
        below = magnitude < _int((127 + 1 - form.bias) << 23)
        code = tirx.Select(below, _bits(_float(magnitude) + shift) - _bits(shift), code)
    over, nan = _beyond(form, saturate)
    code = tirx.Select(code > _int(form.largest), _int(over), code)
    code = tirx.Select(magnitude > _int(INFINITY), _int(nan), code)
    sign = _and(tirx.shift_right(bits, _int(31 - form.exponent - form.mantissa)), form.sign)
    if form.specials == "none":  # a NaN becomes a zero, in ml_dtypes of the other sign
        sign = tirx.Select(magnitude > _int(INFINITY), _int(form.sign) - sign, sign)
    if form.specials == "fnuz":  # no -0; a code past the largest is the NaN in its place
        return tirx.Select(code == _int(0), _int(0), tirx.Select(code > _int(form.largest), _int(form.sign), tirx.bitwise_or(code, sign)))
    return tirx.bitwise_or(code, sign)


def _beyond(form: Format, saturate: bool) -> tuple[int, int]:
    """The codes for what is too large, and for NaN, without their sign."""
    if form.specials == "none":
        return form.largest, 0
    if form.specials == "fnuz":
        return form.largest if saturate else form.sign, form.sign
    infinity = form.largest + 1 if form.specials == "ieee" else form.nan
    return form.largest if saturate and form.exponent < 8 else infinity, form.nan


def _encode_e8m0(x: Expr, attrs: Any) -> Expr:
    """See ``_to_e8m0`` of the operator's file."""
    bits = _and(_bits(x), SIGN - 1)
    exponent, fraction = tirx.shift_right(bits, _int(23)), _and(bits, 0x7FFFFF)
    code = exponent
    if attrs.round_mode != "down":
        up = attrs.round_mode == "up"
        least = tirx.Select(exponent == _int(0), _int(0x400001 if up else 0x600000), _int(1 if up else 0x400000))
        code = exponent + tirx.Select(fraction >= least, _int(1), _int(0))
    code = tirx.Select(code > _int(254), _int(254 if attrs.saturate else 255), code)
    unfit = bits > _int(INFINITY)
    if not attrs.saturate:
        unfit = tirx.any(unfit, bits < _int(0x400000))
    return tirx.Select(unfit, _int(255), code)


def _encode(x: Expr, attrs: Any) -> Expr:
    if attrs.dtype in FORMATS:
        return _encode_float(x, FORMATS[attrs.dtype], attrs.saturate)
    return _encode_e8m0(x, attrs) if attrs.dtype == "float8_e8m0fnu" else _and(x, 2 ** BITS[attrs.dtype] - 1)


def _bitcast(x: Expr, attrs: Any) -> Expr:
    if "bool" in (attrs.dtype, dtype_of(x)):
        return cast(x, attrs.dtype)
    return tirx.reinterpret(attrs.dtype, x) if dtype_of(x) != attrs.dtype else x


def _expression(name: str, function: Callable[[Expr, Any], Expr]) -> Expression:
    def build(attrs: Any, inputs: list[te.Tensor], results: list[TensorType], scope: Scope) -> list[te.Tensor]:
        def body(*i: Expr) -> Expr:
            return cast(common.let(inputs[0](*i), lambda x: function(x, attrs)), results[0].dtype)

        return [common.compute(inputs[0].shape, body, name)]

    return build


EXPRESSIONS: dict[str, Expression] = {
    "decode": _expression("decode", _decode),
    "encode": _expression("encode", _encode),
    "bitcast": _expression("bitcast", _bitcast),
}
