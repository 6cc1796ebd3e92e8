"""Tokenizers of several families and tiny random models, built in the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as HfTokenizer
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mempo.config.rollout import LimitSettings, PromptSettings
from mempo.engine.model import wrap_policy
from mempo.engine.policy import Policy
from mempo.rollout.agent import Agent
from mempo.rollout.context import make_context
from mempo.rollout.interfaces import Generation, SamplingParams, Tool
from mempo.rollout.protocol import TurnGrammar
from mempo.rollout.render import Renderer
from mempo.rollout.tokenizer import Tokenizer
from mempo.rollout.trajectory import GenerationStop

TAG_TOKENS = [
    f"<{slash}{tag}>" for tag in ("mem", "think", "search", "access", "answer", "tool_response") for slash in ("", "/")
]
CORPUS = [
    "<mem> the capital of France is Paris </mem><think>so</think><answer>Paris; Yen</answer>",
    "<search>capital of Japan</search> hello world Zürich 東京 [1] truncated error: a turn\n\n",
    "<tool_response>\nno\n</tool_response> 0 1 2 3 4 5 6 7 8 9 . , ; : ? ! - ' \" ( )",
] * 10


def byte_bpe() -> HfTokenizer:
    t = HfTokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    t.train_from_iterator(CORPUS, trainer)
    return t


def unigram() -> HfTokenizer:
    t = HfTokenizer(models.Unigram())
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "<eos>"], unk_token="<unk>", show_progress=False
    )
    t.train_from_iterator(CORPUS, trainer)
    return t


def word_level() -> HfTokenizer:
    words = sorted({w for line in CORPUS for w in line.replace("<", " <").replace(">", "> ").split()})
    words += [w for w in ("a", "b", "<", ">", "</", "mem", "x", "q") if w not in words]
    t = HfTokenizer(models.WordLevel({w: i for i, w in enumerate(["<unk>", "<eos>", *words])}, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return t


def byte_fallback() -> HfTokenizer:
    """As Llama 2 has it: byte pairs over characters, a space is "▁", one stands in front; the unknown is in bytes."""
    t = HfTokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "<eos>", *in_bytes], show_progress=False, limit_alphabet=40
    )
    t.train_from_iterator([line.replace("><", "> <") for line in CORPUS], trainer)
    state = json.loads(t.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in in_bytes]
    return HfTokenizer.from_str(json.dumps(state))


FAMILIES = {"byte_bpe": byte_bpe, "unigram": unigram, "word_level": word_level, "byte_fallback": byte_fallback}


def make_tokenizer(family: str = "byte_bpe", tags: str = "none", **keywords: Any) -> Tokenizer:
    """`tags`: none | added | special, how the tags of the turn language are in the vocabulary."""
    t = FAMILIES[family]()
    if tags == "added":
        t.add_tokens([AddedToken(tag, normalized=False) for tag in TAG_TOKENS])
    elif tags == "special":
        t.add_special_tokens([AddedToken(tag, special=True, normalized=False) for tag in TAG_TOKENS])
    t.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<eos>", pad_token="<eos>", **keywords))


def tiny_llama(tokenizer: Tokenizer, seed: int = 0, **changes: Any) -> Policy:
    """Two layers, width 32, random weights."""
    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "vocab_size": tokenizer.size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.2,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.eos_id,
        "bos_token_id": None,
    }
    return wrap_policy(LlamaForCausalLM(LlamaConfig(**{**options, **changes})), tokenizer)


# --- chat templates ------------------------------------------------------------------------------------------------

_CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}CONTENT{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\nOPENING' }}{% endif %}"
)
_PLAIN_CONTENT = "{{ m.content }}"
# As several published templates do: what an assistant thought is gone from the next turn on.
_NO_THOUGHTS = "{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
TEMPLATES = {
    "chatml": _CHATML.replace("CONTENT", _PLAIN_CONTENT).replace("OPENING", ""),
    "drops_thoughts": _CHATML.replace("CONTENT", _NO_THOUGHTS).replace("OPENING", ""),
    "opens_think": _CHATML.replace("CONTENT", _PLAIN_CONTENT).replace("OPENING", "<think>\\n"),
    "refuses_system": "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    + _CHATML.replace("CONTENT", _PLAIN_CONTENT).replace("OPENING", ""),
    # As Llama's do: today's date in the system turn, unless the caller names one.
    "dated": "{{ '<|im_start|>system\nToday is ' + strftime_now('%d %b %Y') + '<|im_end|>\n' }}"
    + _CHATML.replace("CONTENT", _PLAIN_CONTENT).replace("OPENING", ""),
    "repeats": _CHATML.replace("CONTENT", _PLAIN_CONTENT * 2).replace("OPENING", ""),
}


def chat_tokenizer(template: str = "chatml", tags: str = "none") -> Tokenizer:
    """Byte-level BPE with `<|im_start|>` and `<|im_end|>`, the latter also its end of sequence and its padding."""
    tokenizer = make_tokenizer("byte_bpe", tags)
    t = tokenizer.hf.backend_tokenizer
    t.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in ("<|im_start|>", "<|im_end|>")]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|im_end|>", pad_token="<|im_end|>")
    fast.chat_template = TEMPLATES[template]
    return Tokenizer(fast)


# --- other model families ------------------------------------------------------------------------------------------


def tiny_model(family: str, tokenizer: Tokenizer, seed: int = 0, **changes: Any) -> Policy:
    """`llama`, `qwen2` (biases, untied head), `gpt_neox` (parallel residual), `gpt2` (learned positions),
    `gemma2` (capped logits, sliding window), `gemma`, `qwen3` (normed keys), `mistral_sliding`."""
    if family == "llama":
        return tiny_llama(tokenizer, seed, **changes)
    torch.manual_seed(seed)
    size, shared = (
        tokenizer.size,
        {"initializer_range": 0.2, "eos_token_id": tokenizer.eos_id, "bos_token_id": None, **changes},
    )
    if family == "gpt2":
        return wrap_policy(
            GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=32, n_layer=2, n_head=2, **shared)), tokenizer
        )
    shape = {"vocab_size": size, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2} | {
        "num_attention_heads": 2,
        "max_position_embeddings": 1024,
    }
    if family == "gpt_neox":
        return wrap_policy(GPTNeoXForCausalLM(GPTNeoXConfig(**shape, **shared)), tokenizer)
    shape["num_key_value_heads"] = 1
    if family == "qwen2":
        return wrap_policy(Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=False, **shared)), tokenizer)
    if family == "qwen3":
        return wrap_policy(Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=16, **shared)), tokenizer)
    if family == "gemma":
        return wrap_policy(GemmaForCausalLM(GemmaConfig(**shape, head_dim=16, **shared)), tokenizer)
    if family == "mistral_sliding":
        return wrap_policy(MistralForCausalLM(MistralConfig(**shape, sliding_window=8, **shared)), tokenizer)
    if family == "gemma2":
        shared = {"final_logit_softcapping": 3.0, **shared}
        config = Gemma2Config(**shape, head_dim=16, sliding_window=8, **shared)
        return wrap_policy(Gemma2ForCausalLM(config), tokenizer)
    raise ValueError(family)


# --- agents --------------------------------------------------------------------------------------------------------


class Scripted:
    """A sampler that says given texts one after another; `-> "…"` without a stop string is cut by the token limit."""

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str | Generation | Exception]) -> None:
        self._tokenizer = tokenizer
        self._left = list(texts)
        self.prompts: list[tuple[int, ...]] = []
        self.asked: list[SamplingParams] = []

    async def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Generation:
        self.prompts.append(tuple(prompt_ids))
        self.asked.append(sampling)
        text = self._left.pop(0)
        if isinstance(text, Exception):
            raise text
        return text if isinstance(text, Generation) else said(self._tokenizer, text, sampling.max_new_tokens)


def said(tokenizer: Tokenizer, text: str, max_new_tokens: int = 10_000) -> Generation:
    """What a sampler returns for `text`; a text that ends in `<eos>` ended by itself."""
    by_itself = text.endswith("<eos>")
    ids = tokenizer.encode_trusted(text.removesuffix("<eos>")) + ((tokenizer.eos_id,) if by_itself else ())
    stop = GenerationStop.EOS if by_itself else GenerationStop.STOP_STRING
    if len(ids) > max_new_tokens:
        ids, stop = ids[:max_new_tokens], GenerationStop.LENGTH
    return Generation(ids, tuple(-0.5 - 0.001 * k for k in range(len(ids))), stop)


def make_agent(
    tokenizer: Tokenizer,
    context: str = "memory",
    grammar: TurnGrammar | None = None,
    tools: Mapping[str, Tool] | None = None,
    prompt: PromptSettings | None = None,
    **limits: Any,
) -> Agent:
    renderer = Renderer(tokenizer, prompt or PromptSettings(template="plain"))
    return Agent(
        context,
        make_context(context, renderer),
        grammar or TurnGrammar(),
        renderer,
        tools or {},
        LimitSettings(**limits),
    )
