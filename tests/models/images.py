"""transformers' networks of images, in small configurations with random weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tests.models.case import Case, Inputs, enliven, settle
from tests.models.language import HIDDEN, Outputs, architectures

TRANSFORMER = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "num_labels": 10}
PATCHES = {"image_size": 32, "patch_size": 8}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 64], "depths": [1, 2, 1, 1]}


class Image(Outputs):
    def forward(self, pixel_values: torch.Tensor) -> Any:
        return self.pick(pixel_values=pixel_values)


def _inputs(side: int) -> Callable[[int], Inputs]:
    return lambda batch: {"pixel_values": torch.randn(batch, 3, side, side)}


def _make(model: str, config: str, side: int, fields: tuple[str, ...], options: dict[str, Any]) -> torch.nn.Module:
    transformers = architectures()
    network = getattr(transformers, model)(getattr(transformers, config)(**options))
    return settle(enliven(Image(network, fields)), [_inputs(side)(4) for _ in range(2)])


def _detr() -> torch.nn.Module:
    transformers = architectures()
    backbone = transformers.ResNetConfig(**RESNET, layer_type="bottleneck", out_features=["stage4"])
    config = transformers.DetrConfig(
        backbone_config=backbone, d_model=HIDDEN, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, num_queries=10, num_labels=7,
    )  # fmt: skip
    module = Image(transformers.DetrForObjectDetection(config), ("logits", "pred_boxes"))
    return settle(enliven(module), [_inputs(96)(4) for _ in range(2)])


def cases() -> list[Case]:
    swin = {"image_size": 64, "patch_size": 2, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "num_labels": 10}
    convnext = {"hidden_sizes": [16, 32, 48, 64], "depths": [1, 1, 2, 1], "num_labels": 10}
    mobilevit = {
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 64],
        "image_size": 64,
        "num_attention_heads": 2,
        "num_labels": 10,
    }
    efficientnet = {"image_size": 64, "width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640, "num_labels": 10}
    regnet = {
        "embedding_size": 16,
        "hidden_sizes": [16, 32, 64, 64],
        "depths": [1, 2, 1, 1],
        "groups_width": 8,
        "layer_type": "y",
        "num_labels": 10,
    }
    segformer = {
        "hidden_sizes": [16, 16, 32, 32],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 4],
        "decoder_hidden_size": 32,
        "num_labels": 5,
    }
    yolos = {**TRANSFORMER, "image_size": [32, 48], "patch_size": 8, "num_detection_tokens": 6}
    logits = ("logits",)
    return [
        _case("vit", "ViTForImageClassification", "ViTConfig", 32, logits, {**TRANSFORMER, **PATCHES}, onnx=True),
        _case(
            "deit", "DeiTForImageClassificationWithTeacher", "DeiTConfig", 32, ("logits", "distillation_logits"), {**TRANSFORMER, **PATCHES}
        ),
        _case("swin", "SwinForImageClassification", "SwinConfig", 64, logits, swin),
        _case("convnext", "ConvNextForImageClassification", "ConvNextConfig", 64, logits, convnext, onnx=True),
        _case("mobilenet_v2", "MobileNetV2ForImageClassification", "MobileNetV2Config", 64, logits, {"image_size": 64, "num_labels": 10}),
        _case("mobilevit", "MobileViTForImageClassification", "MobileViTConfig", 64, logits, mobilevit),
        _case("efficientnet", "EfficientNetForImageClassification", "EfficientNetConfig", 64, logits, efficientnet),
        _case("resnet", "ResNetForImageClassification", "ResNetConfig", 64, logits, {**RESNET, "num_labels": 10}),
        _case("regnet", "RegNetForImageClassification", "RegNetConfig", 64, logits, regnet),
        _case("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", 64, logits, segformer, onnx=True),
        Case("transformers/detr", "transformers", _detr, _inputs(96), {"pixel_values": {0: "batch"}}),
        _case("yolos", "YolosForObjectDetection", "YolosConfig", 32, ("logits", "pred_boxes"), yolos),
    ]


def _case(name: str, model: str, config: str, side: int, fields: tuple[str, ...], options: dict[str, Any], onnx: bool = False) -> Case:
    make = functools.partial(_make, model, config, side, fields, options)
    return Case(f"transformers/{name}", "transformers", make, _inputs(side), {"pixel_values": {0: "batch"}}, onnx=onnx)
