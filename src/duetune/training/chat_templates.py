"""Chat templates by name, for models that have none.

The names are those of the models or tools that use the form. Special tokens that a model's
vocabulary lacks are split into ordinary tokens.
"""

from __future__ import annotations

from typing import Final

TEMPLATES: Final = {
    "chatml": (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama3": (
        "{{ bos_token }}{% for message in messages %}"
        "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' "
        "+ message.content | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    "mistral": (
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for message in messages %}"
        "{% if message.role == 'system' %}{% set ns.system = message.content + '\n\n' %}"
        "{% elif message.role == 'assistant' %}{{ ' ' + message.content | trim + eos_token }}"
        "{% else %}{{ '[INST] ' + ns.system + message.content | trim + ' [/INST]' }}"
        "{% set ns.system = '' %}{% endif %}{% endfor %}"
    ),
    "gemma": (
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for message in messages %}"
        "{% if message.role == 'system' %}{% set ns.system = message.content + '\n\n' %}"
        "{% else %}{{ '<start_of_turn>' "
        "+ ('model' if message.role == 'assistant' else message.role) + '\n' "
        "+ (ns.system if message.role == 'user' else '') + message.content | trim "
        "+ '<end_of_turn>\n' }}{% if message.role == 'user' %}{% set ns.system = '' %}{% endif %}"
        "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    ),
    "phi3": (
        "{% for message in messages %}"
        "{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    ),
    "zephyr": (
        "{% for message in messages %}"
        "{{ '<|' + message.role + '|>\n' + message.content + eos_token + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
    ),
    "alpaca": (
        "{% for message in messages %}{% if message.role == 'system' %}"
        "{{ message.content + '\n\n' }}{% elif message.role == 'assistant' %}"
        "{{ message.content + eos_token + '\n\n' }}{% else %}"
        "{{ '### Instruction:\n' + message.content + '\n\n### Response:\n' }}"
        "{% endif %}{% endfor %}"
    ),
}


def template_text(template: str | None) -> str | None:
    """Return the text of a template that is given by name or as it is."""
    return None if template is None else TEMPLATES.get(template, template)
