"""Tiny models of transformers and peft, built offline from their configurations."""

import torch
from cases import Case
from models import shaken
from truth import points

OUTPUTS, WORDS, LENGTH = 3, 30, 7
TINY = {
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    "num_labels": OUTPUTS,
}  # fmt: skip


def made(name, **settings):
    """The model of that name with random weights, in float64 and eval mode."""
    import transformers

    config = name.split("For")[0] + "Config"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, name)(getattr(transformers, config)(**settings))
        for value in model.parameters():  # biases start at zero, and embeddings are small
            torch.nn.init.normal_(value, std=0.3)
    return shaken(model)


def bert():
    return made(
        "BertForSequenceClassification", vocab_size=WORDS, max_position_embeddings=16, **TINY
    )


def vit():
    return made("ViTForImageClassification", image_size=8, patch_size=4, **TINY)


def resnet():
    return made(
        "ResNetForImageClassification", embedding_size=3, hidden_sizes=[3, 4], depths=[1, 1],
        layer_type="basic", num_labels=OUTPUTS,
    )  # fmt: skip


def lora(model, **settings):
    """The model with trained adapters of rank two, and all else held fixed."""
    import peft

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = peft.LoraConfig(
            r=2,
            target_modules=r".*(query|value|q_proj|v_proj)",
            init_lora_weights=False,
            **settings,
        )
        return peft.get_peft_model(model, config).double().eval()


def sentences(n, seed=0):
    """Token ids and masks, of three tokens and more, as tokenizers give them."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(LENGTH) < (torch.arange(n) % (LENGTH - 2) + 3)[:, None]
    ids = torch.randint(1, WORDS, (n, LENGTH), generator=generator)
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def images(n, seed=0, side=8):
    return points(n, 3 * side * side, seed).reshape(n, 3, side, side)


# make() gives the model, twin(n, seed) points for it.
HUGGING_FACE = [
    Case("BERT", bert, sentences),
    Case("BERT on ids alone", bert, lambda n, seed=0: sentences(n, seed)["input_ids"].clamp(min=1)),
    Case("ViT", vit, images),
    Case("ResNet", resnet, lambda n, seed=0: images(n, seed, 20)),
    Case("LoRA of BERT", lambda: lora(bert(), task_type="SEQ_CLS"), sentences),
    Case("LoRA of ViT", lambda: lora(vit()), images),
]  # fmt: skip
