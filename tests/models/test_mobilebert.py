"""MobileBERT: what it makes of tokens, and how it starts from a checkpoint."""

from __future__ import annotations

import importlib.util
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from stepscope.errors import DataError, MissingExtraError, RequestError
from stepscope.models import registry
from stepscope.models.mobilebert import MobileBert
from stepscope.models.pretrained import check_weights, load_weights

SMALL = "mobilebert-small"


def small(classes: int = 2, seed: int = 0) -> MobileBert:
    torch.manual_seed(seed)
    model = registry.build(SMALL, classes=classes)
    assert isinstance(model, MobileBert)
    return model


def tokens(*lengths: int) -> torch.Tensor:
    """Make texts of some lengths, with padding behind the shorter ones."""
    made = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in enumerate(lengths):
        made[row, :length] = torch.arange(length) % 100 + 4
    return made


def test_it_gives_a_score_a_class_and_padding_changes_none():
    model = small(classes=3).eval()
    with torch.no_grad():
        together = model(tokens(5, 12, 2))
        alone = [model(tokens(length)) for length in (5, 12, 2)]
    assert together.shape == (3, 3)
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)
    assert float((together[0] - together[1]).abs().max()) > 1e-4


def test_every_parameter_gets_a_finite_gradient():
    model = small()
    torch.autograd.backward(nn.functional.cross_entropy(model(tokens(9, 7)), torch.tensor([0, 1])))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name


def test_a_text_that_is_too_long_is_told_of():
    with pytest.raises(ValueError, match=r"at most 512 tokens, found 513"):
        small()(tokens(513))


def test_the_published_one_has_the_library_s_configuration():
    from transformers import MobileBertConfig

    with torch.device("meta"):
        model = registry.build("mobilebert", classes=2)
    assert isinstance(model, MobileBert)
    assert model.config.to_dict() == MobileBertConfig().to_dict()
    assert model.config.vocab_size == registry.ZOO["mobilebert"].tokens == 30_522
    assert small().config.vocab_size == registry.ZOO[SMALL].tokens


def test_a_missing_extra_is_named(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "transformers" else find_spec(name)
    )
    with pytest.raises(MissingExtraError, match=r"transformers, .*'stepscope\[text\]'"):
        registry.build(SMALL, classes=2)
    registry.check_installed("lenet")


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    small(seed=7).network.save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> Path:
    """Give a checkpoint that a test may change."""
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_bytes((saved / name).read_bytes())
    return tmp_path


def change_config(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_weights(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    file = folder / "model.safetensors"
    save_file(change({name: each.clone() for name, each in load_file(file).items()}), file)


def test_all_weights_of_a_checkpoint_are_taken(checkpoint):
    model, there = small(), small(seed=7)
    taken = load_weights(model, SMALL, checkpoint)
    assert taken.fresh == ()
    assert taken.tensors == len(there.state_dict())
    for name, each in there.state_dict().items():
        assert torch.equal(model.state_dict()[name], each), name


def test_a_head_of_another_number_of_classes_is_left_out_and_named(checkpoint):
    model = small(classes=5)
    drawn = model.network.classifier.weight.clone()
    taken = load_weights(model, SMALL, checkpoint)
    assert taken.fresh == ("classifier.weight", "classifier.bias")
    assert torch.equal(model.network.classifier.weight, drawn)


def test_what_pre_training_has_besides_is_not_taken(checkpoint):
    """A checkpoint of the pre-training has other heads, and may have no pooler."""

    def as_pre_trained(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        of_language = {name: each for name, each in found.items() if "encoder" in name}
        embeddings = {name: each for name, each in found.items() if "embeddings" in name}
        return {**of_language, **embeddings, "cls.predictions.bias": torch.zeros(3)}

    change_weights(checkpoint, as_pre_trained)
    (checkpoint / "config.json").unlink()  # what it would say is in the shapes
    taken = load_weights(small(), SMALL, checkpoint)
    assert {name.partition(".")[0] for name in taken.fresh} == {"classifier", "mobilebert"}
    assert all("classifier" in name or "pooler" in name for name in taken.fresh)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 24}, r"num_hidden_layers is 24 there and 4 here"),
        ({"normalization_type": "no_norm"}, r"normalization_type is no_norm there and layer_norm"),
        ({"model_type": "bert"}, r"wanted a checkpoint of mobilebert, .* has 'bert'"),
    ],
)
def test_a_checkpoint_of_another_network_is_refused(checkpoint, changes, message):
    change_config(checkpoint, **changes)
    with pytest.raises(RequestError, match=message):
        load_weights(small(), SMALL, checkpoint)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((64, 32), r"of shape \(8192, 64\), found \(64, 32\); 1 of \d+ tensors do not fit"),
        (None, r"found none"),
    ],
)
def test_a_tensor_that_does_not_fit_or_is_missing_is_named(checkpoint, shape, message):
    name = "mobilebert.embeddings.word_embeddings.weight"

    def change(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        rest = {key: each for key, each in found.items() if key != name}
        return rest if shape is None else {**rest, name: torch.zeros(shape)}

    change_weights(checkpoint, change)
    with pytest.raises(RequestError, match=rf"wanted {name}.*{message}"):
        load_weights(small(), SMALL, checkpoint)


def test_a_pickle_is_refused_with_the_reason_and_never_opened(tmp_path):
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "opened",))  # type: ignore[return-value]

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(RequestError, match=r"found pytorch_model\.bin\. Pickles may run code"):
        check_weights(SMALL, tmp_path)
    assert not (tmp_path / "opened").exists()


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"is a folder without it"):
        check_weights(SMALL, tmp_path)
    with pytest.raises(RequestError, match=r"nowhere is not a folder"):
        check_weights(SMALL, tmp_path / "nowhere")
    with pytest.raises(RequestError, match=r"mobilebert and mobilebert-small .* found lenet"):
        check_weights("lenet", tmp_path)


def test_a_file_that_is_cut_short_is_told_of(checkpoint):
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"cannot read .*model\.safetensors: .* again"):
        load_weights(small(), SMALL, checkpoint)
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"cannot read .*config\.json"):
        load_weights(small(), SMALL, checkpoint)
