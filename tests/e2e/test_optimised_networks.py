"""A BERT as ONNX Runtime's optimiser of transformers writes it, in operators of com.microsoft, and quantised after that."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers import optimizer

from aotc.frontends.onnx import import_onnx
from aotc.ops.interpret import interpret
from tests.agreement import assert_agrees
from tests.e2e.small import run
from tests.e2e.test_quantised_networks import session
from tests.zoo import classifiers

HEADS, WIDTH = 4, 32


class Bert(torch.nn.Module):
    """Takes ids, mask and segments in this order, which the tracing exporter keeps."""

    def __init__(self) -> None:
        super().__init__()
        classifiers.models()  # transformers imports torchvision where it is there
        import transformers

        config = transformers.BertConfig(
            vocab_size=50, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS, intermediate_size=48,
            max_position_embeddings=20, attn_implementation="eager",
        )  # fmt: skip
        torch.manual_seed(0)
        self.model = transformers.BertModel(config)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = self.model(input_ids=ids, attention_mask=mask, token_type_ids=segments)
        return result.last_hidden_state, result.pooler_output


def feeds() -> dict[str, np.ndarray]:
    ids = np.random.default_rng(0).integers(0, 50, (2, 9))
    return {
        "ids": ids,
        "mask": (np.arange(9) < [[6], [9]]).astype("int64"),
        "segments": np.repeat((np.arange(9) >= 5)[None], 2, 0).astype("int64"),
    }


@pytest.fixture(scope="module")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    axes = {name: {0: "batch", 1: "length"} for name in feeds()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Bert().eval(), tuple(map(torch.from_numpy, feeds().values())), folder / "plain.onnx", input_names=list(feeds()),
            output_names=["hidden", "pooled"], dynamic_axes=axes, dynamo=False, opset_version=17,
        )  # fmt: skip
        logging.disable(logging.WARNING)
        better = optimizer.optimize_model(str(folder / "plain.onnx"), "bert", HEADS, WIDTH, opt_level=0)
        better.save_model_to_file(str(folder / "optimised.onnx"))
        quantize_dynamic(
            folder / "optimised.onnx",
            folder / "quantised.onnx",
            weight_type=QuantType.QInt8,
            reduce_range=True,
            extra_options={"DefaultTensorType": 1},
        )
        logging.disable(logging.NOTSET)
    return folder


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node if node.domain == "com.microsoft"}


@pytest.mark.slow
def test_optimised(optimised: Path, tmp_path: Path) -> None:
    path = optimised / "optimised.onnx"
    assert {"Attention", "SkipLayerNormalization", "EmbedLayerNormalization", "BiasGelu"} <= operators(path)
    want = session(optimised / "plain.onnx", "DISABLE_ALL").run(None, feeds())
    for have, reference in zip(run(path, given(path), tmp_path).values(), want, strict=True):
        assert_agrees(have, reference, 1e-5)


def given(path: Path) -> dict[str, np.ndarray]:
    """The optimiser makes int32 of the inputs."""
    return {param.name: feeds()[param.name].astype(param.type.dtype) for param in import_onnx(path).main.params}  # type: ignore[union-attr]


@pytest.mark.slow
def test_quantised_after_it(optimised: Path) -> None:
    path = optimised / "quantised.onnx"
    assert {"QAttention", "DynamicQuantizeMatMul", "QEmbedLayerNormalization"} & operators(path), operators(path)
    want = session(path, "DISABLE_ALL").run(None, given(path))
    module = import_onnx(path)
    for have, reference in zip(interpret(module.main, [given(path)[param.name] for param in module.main.params]), want, strict=True):
        assert_agrees(have, reference, 1e-4)  # the last bit of a float may move an activation by a step
