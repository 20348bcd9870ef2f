"""The sentence encoder all-MiniLM-L6-v2 with its real weights: a BERT encoder of 6 layers, written in plain torch."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.zoo.cache import derived, package_folder
from tests.zoo.export import export_onnx

HIDDEN, HEADS, LAYERS, FEED_FORWARD, VOCABULARY, POSITIONS = 384, 12, 6, 1536, 30522, 512
INPUTS, OUTPUTS = ["input_ids", "attention_mask"], ["hidden", "embedding"]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))
        self.attention_norm, self.output_norm = nn.LayerNorm(HIDDEN, eps=1e-12), nn.LayerNorm(HIDDEN, eps=1e-12)
        self.up, self.down = nn.Linear(HIDDEN, FEED_FORWARD), nn.Linear(FEED_FORWARD, HIDDEN)

    def heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], HEADS, HIDDEN // HEADS).transpose(1, 2)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        query, key, value = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        scores = query @ key.transpose(-1, -2) / math.sqrt(HIDDEN // HEADS) + bias
        context = (scores.softmax(-1) @ value).transpose(1, 2).reshape(x.shape)
        x = self.attention_norm(x + self.output(context))
        return self.output_norm(x + self.down(nn.functional.gelu(self.up(x))))


class MiniLM(nn.Module):
    """Token ids and attention mask, both int64 [batch, sequence] -> hidden states and normalised mean embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
        self.kind = nn.Embedding(2, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        mask = attention_mask.to(torch.float32)
        bias = (1.0 - mask[:, None, None, :]) * torch.finfo(torch.float32).min
        x = self.norm(self.word(input_ids) + self.kind.weight[0] + self.position.weight[: input_ids.shape[1]])
        for layer in self.layers:
            x = layer(x, bias)
        weight = mask[:, :, None]
        pooled = (x * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return x, nn.functional.normalize(pooled, dim=1)


def _names() -> dict[str, str]:
    """Our parameter names by those of the published file."""
    names = {
        "embeddings.word_embeddings.": "word.",
        "embeddings.position_embeddings.": "position.",
        "embeddings.token_type_embeddings.": "kind.",
        "embeddings.LayerNorm.": "norm.",
    }
    for i in range(LAYERS):
        theirs, ours = f"encoder.layer.{i}.", f"layers.{i}."
        for part in ("query", "key", "value"):
            names[f"{theirs}attention.self.{part}."] = f"{ours}{part}."
        names[f"{theirs}attention.output.dense."] = f"{ours}output."
        names[f"{theirs}attention.output.LayerNorm."] = f"{ours}attention_norm."
        names[f"{theirs}intermediate.dense."] = f"{ours}up."
        names[f"{theirs}output.dense."] = f"{ours}down."
        names[f"{theirs}output.LayerNorm."] = f"{ours}output_norm."
    return {theirs + kind: ours + kind for theirs, ours in names.items() for kind in ("weight", "bias")}


def module() -> MiniLM:
    """The encoder in evaluation mode. Raises KeyError or RuntimeError where the published file has other parameters."""
    from safetensors.torch import load

    with zipfile.ZipFile(package_folder("all_minilm_l6_v2") / "model.zip") as archive:
        published = load(archive.read("model.safetensors"))
    names = _names()
    network = MiniLM()
    network.load_state_dict({names[key]: value for key, value in published.items() if key in names})
    return network.eval()


def example(batch: int, sequence: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded token ids; rows are padded at their ends to different lengths, the first one not at all."""
    random = np.random.default_rng(seed)
    ids = random.integers(1000, VOCABULARY, (batch, sequence))
    lengths = np.array([max(1, sequence - row * sequence // (batch + 1)) for row in range(batch)])
    mask = (np.arange(sequence)[None, :] < lengths[:, None]).astype(np.int64)
    return {"input_ids": ids * mask, "attention_mask": mask}


def torch_arguments() -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """Example inputs and dynamic shapes for torch.export: any batch up to 32, any sequence up to 512."""
    batch, sequence = torch.export.Dim("batch", min=1, max=32), torch.export.Dim("sequence", min=1, max=POSITIONS)
    args = tuple(torch.from_numpy(array) for array in example(2, 16).values())
    return args, {name: {0: batch, 1: sequence} for name in INPUTS}


def onnx_path() -> Path:
    """The ONNX export with dynamic dims ``batch`` and ``sequence``."""
    axes = {name: {0: "batch", 1: "sequence"} for name in [*INPUTS, "hidden"]} | {"embedding": {0: "batch"}}
    return derived(
        "minilm_l6.onnx",
        lambda path: export_onnx(module(), torch_arguments()[0], path, INPUTS, OUTPUTS, axes),
        "minilm",
        "export",
    )
