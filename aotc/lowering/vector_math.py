"""exp, log, tanh, erf, gelu, silu and sigmoid of float32 as arithmetic that LLVM vectorises (it calls libm once per lane otherwise).

Each function takes and returns a tirx float32 expression. Errors are the largest seen over every 257th float32 against
float64, in units in the last place, with the multiply-adds contracted (FMA) as all targets do; a test holds them. Infinities,
NaN and denormal arguments and results are treated as IEEE 754 and C's libm do. float64 goes to libm.

Sources: the reductions and polynomials of exp, log and tanh are those of Moshier's Cephes library (expf.c, logf.c, tanhf.c;
public); erf follows N. Juffa's erff (2016, posted under the two-clause BSD licence).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

Expr = Any

_ROUND_MAGIC = 12582912.0  # 1.5 * 2^23: adding it rounds a float32 below 2^22 to an integer, which then stands in the low bits
_LOG_SERIES = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_EXP_SERIES = (1.3843607157e-3, 8.3741955459e-3, 4.1668005288e-2, 1.6666430235e-1, 4.9999994040e-1, 1.0, 1.0)
"""e^r for |r| <= ln(2) / 2: the polynomial of the least largest relative error, 2e-9, found by Lawson's iteration."""
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4


def exp(x: Expr) -> Expr:
    """e^x within 1.1 ulp (of the smallest denormal where the result is denormal)."""
    clamped = tirx.Select(x > _f(89.0), _f(89.0), tirx.Select(x < _f(-104.0), _f(-104.0), x))  # a NaN stays
    return _let(clamped, _exp_in_range)


def _exp_in_range(x: Expr) -> Expr:
    """e^x for x in [-104, 89]: 2^n * e^r with |r| <= ln(2) / 2; 2^n in two factors, since n may lie outside [-126, 127]."""

    def scaled(shifted: Expr) -> Expr:
        n = tirx.reinterpret("int32", shifted) - tirx.reinterpret("int32", _f(_ROUND_MAGIC))

        def multiplied(less_one: Expr) -> Expr:
            half = _power_of_two(n >> 1)
            return (less_one * half + half) * _power_of_two(n - (n >> 1))

        return _let(_exp_less_one(x, shifted), multiplied)

    return _let(x * _f(1.44269504088896341) + _f(_ROUND_MAGIC), scaled)


def _exp_less_one(x: Expr, shifted: Expr) -> Expr:
    """e^r - 1 for r = x - n * ln(2); ``shifted`` is n with the magic number added."""

    def reduced(r: Expr) -> Expr:
        series = _polynomial(r, (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1))
        return series * (r * r) + r

    def rest(count: Expr) -> Expr:
        return _let((x - count * _f(_LN2_HIGH)) - count * _f(_LN2_LOW), reduced)

    return _let(shifted - _f(_ROUND_MAGIC), rest)


def exp_of_negative(x: Expr) -> Expr:
    """e^x for x <= 0 within 1.1 ulp, in fewer operations; below -87.3, where results reach the end of the normal numbers, it is 0.
    What a softmax needs: it subtracts the greatest."""
    return _let(x, lambda v: tirx.Select(v < _f(-87.3), _f(0.0), _exp_of_moderate(v)))


def _exp_of_moderate(x: Expr) -> Expr:
    """e^x for |x| <= 87.3, where the result's exponent is surely in range. A NaN stays."""

    def scaled(shifted: Expr) -> Expr:
        power = tirx.reinterpret("float32", (tirx.reinterpret("int32", shifted) << _i(23)) + _i(127 << 23))
        return _let(power, lambda scale: _exp_less_one(x, shifted) * scale + scale)

    return _let(x * _f(1.44269504088896341) + _f(_ROUND_MAGIC), scaled)


def _less_one_of_moderate(x: Expr) -> Expr:
    """e^x - 1 for 0 <= x <= 87, small where x is."""

    def scaled(shifted: Expr) -> Expr:
        power = tirx.reinterpret("float32", (tirx.reinterpret("int32", shifted) << _i(23)) + _i(127 << 23))
        return _let(power, lambda scale: _exp_less_one(x, shifted) * scale + (scale - _f(1.0)))

    return _let(x * _f(1.44269504088896341) + _f(_ROUND_MAGIC), scaled)


def _power_of_two(n: Expr) -> Expr:
    return tirx.reinterpret("float32", (n + _i(127)) << _i(23))


def log(x: Expr) -> Expr:
    """The natural logarithm within 1.0 ulp."""
    return _let(x, _log)


def _log(x: Expr) -> Expr:
    tiny = x < _f(1.17549435e-38)
    normal = tirx.Select(tiny, x * _f(8388608.0), x)
    special = tirx.Select(x == _f(0.0), _f(-math.inf), tirx.Select(x < _f(0.0), _f(math.nan), x))  # +inf and NaN stay
    usable = tirx.all(x > _f(0.0), x < _f(math.inf))
    return tirx.Select(usable, _let(tirx.reinterpret("int32", normal), lambda bits: _log_of_bits(bits, tiny)), special)


def _log_of_bits(bits: Expr, tiny: Expr) -> Expr:
    """log of 2^e * m, with m in [sqrt(1/2), sqrt(2))."""
    exponent = ((bits >> _i(23)) & _i(255)) - _i(126) - tirx.Select(tiny, _i(23), _i(0))
    mantissa = tirx.reinterpret("float32", (bits & _i(0x7FFFFF)) | _i(0x3F000000))

    def centred(m: Expr) -> Expr:
        low = m < _f(0.707106781186547524)
        e = tirx.Cast("float32", exponent - tirx.Select(low, _i(1), _i(0)))
        return _let(tirx.Select(low, m + m, m) - _f(1.0), lambda f: _let(e, lambda count: _log_reduced(f, count)))

    return _let(mantissa, centred)


def _log_reduced(f: Expr, e: Expr) -> Expr:
    series = _polynomial(f, _LOG_SERIES)
    square = f * f
    tail = (series * f * square + e * _f(_LN2_LOW)) - _f(0.5) * square
    return (f + tail) + e * _f(_LN2_HIGH)


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent within 2.3 ulp: of |x|, it is e^2|x| - 1 over that and 2."""

    def ratio(less_one: Expr) -> Expr:
        return less_one / (less_one + _f(2.0))

    def body(v: Expr) -> Expr:
        twice = _let(tirx.abs(v) * _f(2.0), lambda t: tirx.Select(t > _f(20.0), _f(20.0), t))  # from 18.04 on it is 1
        return _let(_let(_let(twice, _less_one_of_moderate), ratio), lambda magnitude: _with_sign(magnitude, v))

    return _let(x, body)


def erf(x: Expr) -> Expr:
    """The error function within 1.5 ulp."""

    def body(v: Expr) -> Expr:
        square = v * v

        def beyond(t: Expr) -> Expr:
            high = _polynomial(t, (-1.72853470e-5, 3.83197126e-4)) * (t * t) + _polynomial(t, (-3.88396438e-3, 2.42546219e-2))
            power = ((high * t + _f(-1.06777877e-1)) * t + _f(-6.34846687e-1)) * t + _f(-1.28717512e-1)
            return _let(power * t - t, lambda y: _f(1.0) - _exp_of_moderate(y))

        magnitude = tirx.abs(v)
        large = _let(tirx.Select(magnitude > _f(4.0), _f(4.0), magnitude), beyond)  # from 3.92 on it is 1
        small = _polynomial(square, (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)) * v + v
        return _let(large, lambda far: tirx.Select(magnitude > _f(0.927734375), _with_sign(far, v), small))

    return _let(x, body)


_LOG_OF_TAIL = (
    *(1.2498684e-7, -3.2377791e-6, 3.2848657e-5, -1.3695624e-4, -2.7491964e-4, 7.2506648e-3),
    *(-5.2620940e-2, -4.5917156e-1, -1.1511086e0, -1.0),
)
"""log2 of the normal distribution's tail from t on, 0 <= t <= 6: a minimax fit of its absolute error (Lawson's algorithm)."""
_POWER_OF_TWO = (1.3264727e-3, 9.6715130e-3, 5.5507336e-2, 2.4022242e-1, 6.9314700e-1, 1.0)
"""2^r for |r| <= 1/2 within 9.2e-8, a fit of the same kind."""


def gelu(x: Expr) -> Expr:
    """x times the normal distribution function, within 1.3e-7 * |x|, as 0.5 * x * (1 + erf(x / sqrt(2))) in float32 is: max(x, 0)
    less |x| times the tail from |x| on. Below -6, where the result is above -6e-9, it is 0."""

    def body(v: Expr) -> Expr:
        size = tirx.abs(v)

        def less_tail(near: Expr) -> Expr:
            tail = tirx.Select(size > _f(6.0), _f(0.0), _let(_polynomial(near, _LOG_OF_TAIL), _two_to_the))
            return tirx.Select(v < _f(0.0), _f(0.0), v) - near * tail

        return _let(tirx.Select(size > _f(6.0), _f(6.0), size), less_tail)

    return _let(x, body)


def _two_to_the(y: Expr) -> Expr:
    """2^y for -126 <= y <= 126 within 1.2e-7 of it. A NaN need not stay."""

    def scaled(shifted: Expr) -> Expr:
        power = _let(y - (shifted - _f(_ROUND_MAGIC)), lambda r: _polynomial(r, _POWER_OF_TWO))
        return tirx.reinterpret("float32", tirx.reinterpret("int32", power) + (tirx.reinterpret("int32", shifted) << _i(23)))

    return _let(y + _f(_ROUND_MAGIC), scaled)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e^-x) within 2.5 ulp, denormal results included."""
    # From 65 on it is 1, below -105 the quotient rounds to 0; a NaN stays. One name each makes a minimum and a maximum of the two.
    below = _let(x, lambda v: tirx.Select(v > _f(65.0), _f(65.0), v))
    return _let(_let(below, lambda v: tirx.Select(v < _f(-105.0), _f(-105.0), v)), _sigmoid_in_range)


def _sigmoid_in_range(x: Expr) -> Expr:
    """1 / (1 + e^-x) for x in [-105, 65]. Both parts of the quotient are taken times 2^-32: so the exponent of e^-x, up to 151,
    stays in range, and the result is rounded once where it is denormal."""

    def quotient(shifted: Expr) -> Expr:
        power = tirx.reinterpret("float32", (tirx.reinterpret("int32", shifted) << _i(23)) + _i((127 - 32) << 23))
        rest = _let(shifted - _f(_ROUND_MAGIC), lambda n: n * _f(-_LN2_LOW) - (n * _f(_LN2_HIGH) + x))
        return _let(rest, lambda r: _f(2.0**-32) / (_polynomial(r, _EXP_SERIES) * power + _f(2.0**-32)))

    return _let(x * _f(-1.44269504088896341) + _f(_ROUND_MAGIC), quotient)


_EXP_SHORT_SERIES = (8.3125010133e-3, 4.1890330613e-2, 1.6667115688e-1, 4.9999231100e-1, 1.0, 1.0)
"""e^r for |r| <= ln(2) / 2 within 1.1e-7, a fit of the same kind that is exact to the first order."""


def silu(x: Expr) -> Expr:
    """x / (1 + e^-x) within 4 ulp from -20 on and 7 ulp below; from -88.4 down, where the result is above -4e-37, it is 0 (and NaN for
    minus infinity, as in C). Whole networks spend much of their time here: hence a short series, and comparisons as integers."""

    def clamped(v: Expr) -> Expr:
        """v in [-89, 87]: of floats with a sign the bits are the larger integers the farther they are from 0."""
        below = tirx.min(tirx.reinterpret("int32", v), tirx.reinterpret("int32", _f(87.0)))
        return tirx.reinterpret("float32", tirx.min(tirx.reinterpret("uint32", below), tirx.reinterpret("uint32", _f(-89.0))))

    def quotient(v: Expr, near: Expr, shifted: Expr) -> Expr:
        power = tirx.reinterpret("float32", (tirx.reinterpret("int32", shifted) << _i(23)) + _i(127 << 23))  # of 128 it is infinite
        rest = (shifted - _f(_ROUND_MAGIC)) * _f(-0.693147180559945) - near
        return _let(rest, lambda r: v / (_polynomial(r, _EXP_SHORT_SERIES) * power + _f(1.0)))

    def body(v: Expr, near: Expr) -> Expr:
        return _let(near * _f(-1.44269504088896341) + _f(_ROUND_MAGIC), lambda shifted: quotient(v, near, shifted))

    return _let(x, lambda v: _let(clamped(v), lambda near: body(v, near)))


def _with_sign(magnitude: Expr, sign: Expr) -> Expr:
    """``magnitude``, which is not negative, with the sign of ``sign``."""
    return tirx.call_llvm_pure_intrin("float32", "llvm.copysign", magnitude, sign)


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's scheme, the highest power first."""
    result = _f(coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + _f(coefficient)
    return result


def _let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """``body`` of a name for ``value``: expressions are trees, and each use would repeat the whole of it."""
    name = tirx.Var("v", str(value.ty))
    return tirx.Let(name, value, body(name))


def _f(value: float) -> Expr:
    return tirx.FloatImm("float32", value)


def _i(value: int) -> Expr:
    return tirx.IntImm("int32", value)
