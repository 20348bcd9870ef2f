"""The handlers of all ONNX operators, one file a family. A handler builds the node's outputs; it asks ``node.opset`` where
versions of an operator differ."""

from __future__ import annotations

from aotc.frontends.onnx.node import Handler
from aotc.frontends.onnx.operators import (
    constants,
    control,
    conv,
    einsum,
    elementwise,
    grams,
    index,
    linear,
    microsoft,
    microsoft_attention,
    microsoft_quantised,
    ml,
    norm,
    quantise,
    random,
    recurrent,
    reduce,
    resize,
    sampling,
    select,
    sequence,
    shape,
    signal,
)
from aotc.frontends.onnx.operators.cases import CASES

ML = "ai.onnx.ml"
MICROSOFT = "com.microsoft"


def _join(domain: str, *families: dict[str, Handler]) -> dict[tuple[str, str], Handler]:
    joined: dict[tuple[str, str], Handler] = {}
    for family in families:
        for name, handler in family.items():
            if (domain, name) in joined:
                raise ValueError(f"two handlers are there for {name}")
            joined[domain, name] = CASES[name](handler) if not domain and name in CASES else handler
    return joined


HANDLERS: dict[tuple[str, str], Handler] = (
    _join(
        "",
        elementwise.HANDLERS,
        linear.HANDLERS,
        einsum.HANDLERS,
        conv.HANDLERS,
        norm.HANDLERS,
        quantise.HANDLERS,
        microsoft.OWN_DOMAIN,
        reduce.HANDLERS,
        shape.HANDLERS,
        constants.HANDLERS,
        index.HANDLERS,
        grams.HANDLERS,
        resize.HANDLERS,
        sampling.HANDLERS,
        select.HANDLERS,
        sequence.HANDLERS,
        signal.HANDLERS,
        control.HANDLERS,
        recurrent.HANDLERS,
        random.HANDLERS,
    )
    | _join(ML, ml.HANDLERS)
    | _join(MICROSOFT, microsoft.HANDLERS, microsoft_attention.HANDLERS, microsoft_quantised.HANDLERS, recurrent.MICROSOFT)
)
"""By domain ('' is ONNX's own) and operator."""
