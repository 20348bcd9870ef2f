"""transformers' GPT-2 and Llama as files that write text: the key and value cache stays in the session.

The tensors of transformers' static cache are buffers; they become states that the entry points ``prefill`` (a prompt of any
length) and ``step`` (one token) share. ``with_passed_cache`` is the other way: the cache is an
input and an output whose length is dynamic.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import aotc
from aotc.ir.dims import symbol
from tests.models.case import enliven
from tests.models.language import HIDDEN, SMALL, VOCABULARY, architectures

PROMPT, NEW, LONGEST = (7, 3, 150, 42, 9), 64, 80
NAMES = ("gpt2", "llama")


def network(name: str) -> torch.nn.Module:
    """A small causal language model, whose weights are large enough that its choices differ."""
    transformers = architectures()
    torch.manual_seed(0)
    options: dict[str, Any] = {"initializer_range": 0.3, "eos_token_id": None, "bos_token_id": None}
    if name == "gpt2":
        sizes = {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": 2, "n_head": 4, "n_positions": 128}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **options))
    else:
        sizes = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 128}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **options))
    return enliven(model).eval()


def by_torch(model: torch.nn.Module, prompt: Sequence[int] = PROMPT, count: int = NEW) -> list[int]:
    """Greedy tokens, everything read anew for each: no cache that could be wrong."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


class StaticCache(torch.nn.Module):
    """A causal language model with transformers' static cache, whose tensors are buffers of the module."""

    PARTS = ("keys", "values", "cumulative_length")

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.cache = architectures().StaticCache(config=model.config, max_cache_len=LONGEST)
        heads, width = past_of(model, 0)[0].shape[1::2]
        self.cache.early_initialization(1, heads, width, torch.float32, torch.device("cpu"))
        for i, layer in enumerate(self.cache.layers):
            for part in self.PARTS:
                self.register_buffer(f"{part}_{i}", getattr(layer, part).clone(), persistent=False)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.cache.layers):
            for part in self.PARTS:
                setattr(layer, part, getattr(self, f"{part}_{i}"))
        return self.model(input_ids, position_ids=positions[None], past_key_values=self.cache, use_cache=True).logits


def build_with_states(model: Any, output: Path) -> aotc.BuildReport:
    """``prefill`` and ``step`` in one file; the cache of ``LONGEST`` positions is kept by the session."""
    module = StaticCache(model)
    length = torch.export.Dim("length", min=2, max=LONGEST)

    def example(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(1, count, dtype=torch.int64), torch.arange(count)

    models = {
        "prefill": aotc.EntryPoint(module, args=example(5), dynamic_shapes=({1: length}, {0: length})),
        "step": aotc.EntryPoint(module, args=example(1)),
    }
    return aotc.compile(models, "host", output)


def with_states(path: Path, prompt: Sequence[int] = PROMPT, count: int = NEW) -> list[int]:
    session = aotc.load(path).session()
    found: list[int] = []
    entry, tokens, position = "prefill", list(prompt), 0
    for _ in range(count):
        inputs = {"input_ids": np.array([tokens]), "positions": np.arange(position, position + len(tokens))}
        logits = session.run(inputs, entry_point=entry)["output"]
        position += len(tokens)
        entry, tokens = "step", [int(logits[0, -1].argmax())]
        found += tokens
    return found


class PassedCache(torch.nn.Module):
    """Tokens, and keys and values of what came before -> logits, and keys and values of all."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, past: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        cache = architectures().DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        result = self.model(input_ids, past_key_values=cache, use_cache=True)
        return result.logits, [each for layer in result.past_key_values.layers for each in (layer.keys, layer.values)]


def past_of(model: Any, length: int) -> list[torch.Tensor]:
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    shape = (1, heads, length, config.hidden_size // config.num_attention_heads)
    return [torch.zeros(shape) for _ in range(2 * config.num_hidden_layers)]


def build_with_passed_cache(model: Any, output: Path) -> aotc.BuildReport:
    past = torch.export.Dim("past", min=0, max=LONGEST)
    args = (torch.ones(1, 1, dtype=torch.int64), past_of(model, 6))
    shapes = (None, [{2: past} for _ in args[1]])
    length = symbol("past", 0, LONGEST)  # torch.export says from 1; the first token has nothing before it
    inputs = {f"past_{i}": (1, each.shape[1], length, each.shape[3]) for i, each in enumerate(args[1])}
    return aotc.compile(PassedCache(model), "host", output, inputs, args=args, dynamic_shapes=shapes)


def with_passed_cache(path: Path, model: Any, prompt: Sequence[int] = PROMPT, count: int = NEW) -> list[int]:
    """One token a run, the prompt's too; what a run returns is what the next one takes."""
    run = aotc.load(path)
    names = [each.name for each in run.inputs]
    past = [each.numpy() for each in past_of(model, 0)]
    found: list[int] = []
    for position in range(len(prompt) + count - 1):
        token = prompt[position] if position < len(prompt) else found[-1]
        results = [each.copy() for each in run.run(dict(zip(names, [np.array([[token]]), *past], strict=True))).values()]
        past = results[1:]
        if position >= len(prompt) - 1:
            found.append(int(results[0][0, -1].argmax()))
    return found
