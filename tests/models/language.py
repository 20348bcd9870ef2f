"""transformers' networks of text, speech, and text with images, in small configurations with random weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tests.models.case import Case, Inputs, enliven
from tests.zoo.classifiers import models

VOCABULARY, HIDDEN = 200, 64
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "max_position_embeddings": 64,
}  # fmt: skip
TEXT = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}


class Outputs(torch.nn.Module):
    """A network that returns the named fields of what ``inner`` returns; ``inputs`` are its parameters, in order."""

    def __init__(self, inner: torch.nn.Module, fields: tuple[str, ...], **fixed: Any) -> None:
        super().__init__()
        self.inner, self.fields, self.fixed = inner, fields, fixed

    def pick(self, **inputs: Any) -> tuple[torch.Tensor, ...]:
        result = self.inner(**inputs, **self.fixed)
        return tuple(getattr(result, field) for field in self.fields)


class Text(Outputs):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return self.pick(input_ids=input_ids, attention_mask=attention_mask)


class Decoder(Outputs):
    """A decoder that looks at the states of an encoder."""

    def forward(self, input_ids: torch.Tensor, encoder_hidden_states: torch.Tensor) -> Any:
        return self.pick(input_ids=input_ids, encoder_hidden_states=encoder_hidden_states)


class Speech(Outputs):
    def forward(self, input_features: torch.Tensor) -> Any:
        return self.pick(input_features=input_features)


class TextAndImage(Outputs):
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, pixel_values: torch.Tensor) -> Any:
        return self.pick(input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixel_values)


@functools.cache
def architectures() -> Any:
    """transformers, which imports torchvision where it is installed: it must be made to load first."""
    models()
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def text(batch: int, length: int = 12) -> Inputs:
    """Ids and a mask that leaves out the end of the first row."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length - 3 :] = 0
    return {"input_ids": torch.randint(3, VOCABULARY, (batch, length)), "attention_mask": mask}


def _decoder_inputs(states: int, width: int) -> Callable[[int], Inputs]:
    return lambda batch: {
        "input_ids": torch.randint(3, VOCABULARY, (batch, 5)), "encoder_hidden_states": torch.randn(batch, states, width),
    }  # fmt: skip


def _encoder_only(
    model: str, config: str, wrapper: type[Outputs] = Text, fields: tuple[str, ...] = ("last_hidden_state",), **options: Any
) -> Any:
    transformers = architectures()
    network = getattr(transformers, model)(getattr(transformers, config)(**options))
    return enliven(wrapper(network, fields)).eval()


def _causal(model: str, config: str, **options: Any) -> torch.nn.Module:
    transformers = architectures()
    network = getattr(transformers, model)(getattr(transformers, config)(**options))
    return enliven(Text(network, ("logits",), use_cache=False)).eval()


def _t5(part: str) -> torch.nn.Module:
    transformers = architectures()
    config = transformers.T5Config(vocab_size=VOCABULARY, d_model=HIDDEN, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
    model = transformers.T5Model(config)
    fields = ("last_hidden_state",)
    return enliven(Text(model.encoder, fields) if part == "encoder" else Decoder(model.decoder, fields, use_cache=False)).eval()


def _whisper(part: str) -> torch.nn.Module:
    transformers = architectures()
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=20, d_model=HIDDEN, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=30, max_target_positions=32,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    model = transformers.WhisperModel(config)
    fields = ("last_hidden_state",)
    return enliven(Speech(model.encoder, fields) if part == "encoder" else Decoder(model.decoder, fields, use_cache=False)).eval()


def _clip() -> torch.nn.Module:
    transformers = architectures()
    text_config = {**SMALL, "eos_token_id": 2, "projection_dim": 32}
    vision_config = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "image_size": 32,
        "patch_size": 8,
    }
    config = transformers.CLIPConfig(text_config=text_config, vision_config=vision_config, projection_dim=32)
    return enliven(TextAndImage(transformers.CLIPModel(config), ("logits_per_image", "text_embeds", "image_embeds"))).eval()


def cases() -> list[Case]:
    llama = {**SMALL, "num_key_value_heads": 2}
    gpt2 = {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": 2, "n_head": 4, "n_positions": 64}
    distil = {"vocab_size": VOCABULARY, "dim": HIDDEN, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "max_position_embeddings": 64}
    both = ("last_hidden_state", "pooler_output")
    decoder = {"input_ids": {0: "batch", 1: "length"}, "encoder_hidden_states": {0: "batch"}}
    return [
        _case("bert", functools.partial(_encoder_only, "BertModel", "BertConfig", fields=both, **SMALL), text, TEXT, onnx=True),
        _case("roberta", functools.partial(_encoder_only, "RobertaModel", "RobertaConfig", fields=both, **SMALL), text, TEXT),
        _case("distilbert", functools.partial(_encoder_only, "DistilBertModel", "DistilBertConfig", **distil), text, TEXT, onnx=True),
        _case("gpt2", functools.partial(_causal, "GPT2LMHeadModel", "GPT2Config", **gpt2), text, TEXT, onnx=True),
        _case("llama", functools.partial(_causal, "LlamaForCausalLM", "LlamaConfig", **llama), text, TEXT),
        _case("qwen2", functools.partial(_causal, "Qwen2ForCausalLM", "Qwen2Config", **llama), text, TEXT, onnx=True),
        _case("t5-encoder", functools.partial(_t5, "encoder"), text, TEXT, onnx=True),
        _case("t5-decoder", functools.partial(_t5, "decoder"), _decoder_inputs(9, HIDDEN), decoder),
        _case("whisper-encoder", functools.partial(_whisper, "encoder"), lambda batch: {"input_features": torch.randn(batch, 20, 60)},
              {"input_features": {0: "batch"}}, onnx=True),
        _case("whisper-decoder", functools.partial(_whisper, "decoder"), _decoder_inputs(30, HIDDEN), decoder),
        _case("clip", _clip, lambda batch: {**text(batch), "pixel_values": torch.randn(batch, 3, 32, 32)},
              {**TEXT, "pixel_values": {0: "images"}}),
    ]  # fmt: skip


def _case(name: str, make: Callable[[], torch.nn.Module], inputs: Callable[[int], Inputs], dynamic: Any, onnx: bool = False) -> Case:
    return Case(f"transformers/{name}", "transformers", make, inputs, dynamic, onnx=onnx)
