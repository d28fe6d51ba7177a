"""Train a tiny BERT from scratch with the Trainer of transformers."""

import argparse
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Sentences(Dataset):
    def __init__(self, count, length=48, vocab=1000):
        self.input_ids = torch.randint(5, vocab, (count, length))
        self.labels = (self.input_ids.float().mean(1) > vocab / 2).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        ids = self.input_ids[index]
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": self.labels[index],
        }


def main(kind=Trainer):
    parser = argparse.ArgumentParser()
    parser.add_argument("--gradient-accumulation-steps", type=int, default=2)
    args = parser.parse_args()

    set_seed(0)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    with tempfile.TemporaryDirectory() as output_dir:
        arguments = TrainingArguments(
            output_dir=output_dir,
            num_train_epochs=2,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=32,
            gradient_accumulation_steps=args.gradient_accumulation_steps,
            learning_rate=1e-3,
            eval_strategy="epoch",
            save_strategy="no",
            logging_steps=10,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = kind(
            model=BertForSequenceClassification(config),
            args=arguments,
            train_dataset=Sentences(640),
            eval_dataset=Sentences(128),
        )
        result = trainer.train()

    print(f"training loss {result.training_loss:.4f}")
    print(f"updates={result.global_step}")


if __name__ == "__main__":
    main()
