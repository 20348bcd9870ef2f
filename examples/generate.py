"""A small language model with its key and value cache kept in the session: two entry points of one file share it.

    python -m examples.generate

``prefill`` reads a prompt of any length, ``step`` one token; both write the cache, which never leaves the session. The tokens
are those that the network in PyTorch chooses by reading everything anew for each one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

import aotc

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 97, 32, 4, 2, 64


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("keys", torch.zeros(HEADS, LONGEST, WIDTH // HEADS))
        self.register_buffer("values", torch.zeros(HEADS, LONGEST, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """``x`` [tokens, width] stands at ``positions`` [tokens]; what stands before is in the cache."""
        query, key, value = self.project(x).reshape(-1, 3, HEADS, WIDTH // HEADS).permute(1, 2, 0, 3)
        self.keys.index_copy_(1, positions, key)
        self.values.index_copy_(1, positions, value)
        seen = torch.arange(LONGEST) <= positions[:, None]
        mixed = nn.functional.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=seen)
        return self.out(mixed.transpose(0, 1).reshape(-1, WIDTH))


class Network(nn.Module):
    """Next-token scores [vocabulary] after ``tokens`` [n] at ``positions`` [n]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.attention = nn.ModuleList(Attention() for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS))
        self.score = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(positions)
        for norm, attention in zip(self.norms, self.attention, strict=True):
            x = x + attention(norm(x), positions)
        return self.score(x[-1])


def build(network: nn.Module, output: Path, target: str = "host") -> aotc.BuildReport:
    """One file with the entry points ``prefill`` and ``step``."""
    prompt, token = (torch.arange(5), torch.arange(5)), (torch.arange(1), torch.arange(1))
    tokens = torch.export.Dim("tokens", min=2, max=LONGEST)
    models = {
        "prefill": aotc.EntryPoint(network, args=prompt, dynamic_shapes=({0: tokens}, {0: tokens})),
        "step": aotc.EntryPoint(network, args=token),
    }
    return aotc.compile(models, target=target, output=output)


def generate(session: aotc.Session, prompt: Sequence[int], count: int) -> list[int]:
    """``count`` tokens that follow ``prompt``, each the most likely one."""
    session.reset()
    entry_point, tokens, found = "prefill", list(prompt), list[int]()
    position = 0
    for _ in range(count):
        inputs = {"tokens": np.array(tokens), "positions": np.arange(position, position + len(tokens))}
        scores = session.run(inputs, entry_point=entry_point)["output"]
        position += len(tokens)
        entry_point, tokens = "step", [int(scores.argmax())]
        found += tokens
    return found


def generate_by_torch(network: nn.Module, prompt: Sequence[int], count: int) -> list[int]:
    """The same, everything read anew for each token."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(network(torch.tensor(tokens), torch.arange(len(tokens))).argmax()))
    return tokens[len(prompt) :]


def main() -> None:
    torch.manual_seed(0)
    network, prompt = Network().eval(), [3, 14, 15, 92, 65]
    with tempfile.TemporaryDirectory() as folder:
        build(network, Path(folder) / "model.so")
        ours = generate(aotc.load(Path(folder) / "model.so").session(), prompt, 40)
    print("aotc   ", *ours)
    print("PyTorch", *generate_by_torch(network, prompt, 40))


if __name__ == "__main__":
    main()
