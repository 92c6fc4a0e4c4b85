"""Write a small random Qwen3 model with a real tokenizer and a chat template, in the engine's Python.

Nothing of the project is imported here: the engine's environment does not have it.
Usage: tiny_model_script.py FOLDER
"""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

#: Small enough for seconds on two cores, with a head size (64) that vLLM's CPU attention supports.
LAYERS, HIDDEN, HEAD = 4, 256, 64
VOCABULARY = 4096
LONGEST = 4096
PADDING, TURN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def write_tokenizer(folder: Path) -> tuple[int, int, int]:
    """Train a byte-level BPE on the standard library; give its size and the ids of padding and end."""
    from tokenizers import ByteLevelBPETokenizer

    # The text that every machine with Python has; sorted, so that the same Python gives the same tokenizer.
    sources = sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(sources, vocab_size=VOCABULARY, special_tokens=[PADDING, TURN, END], show_progress=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": LONGEST,
        "pad_token": PADDING,
        "eos_token": END,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return tokenizer.get_vocab_size(), tokenizer.token_to_id(PADDING), tokenizer.token_to_id(END)


def write_model(folder: Path, vocabulary: int, padding: int, end: int) -> None:
    """Write config and random BF16 weights, the same in every run."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // HEAD,
        num_key_value_heads=HIDDEN // HEAD // 2,
        head_dim=HEAD,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=padding,
    )
    torch.manual_seed(20)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    generation = {"do_sample": True, "temperature": 1.0, "eos_token_id": end, "pad_token_id": padding}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")


def main() -> None:
    """Write everything into the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder, *write_tokenizer(folder))


if __name__ == "__main__":
    main()
