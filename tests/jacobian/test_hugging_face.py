"""Models of transformers and peft, as their users have them."""

import warnings

import pytest
import torch
from cases import each
from hugging_face import HUGGING_FACE, OUTPUTS, bert, images, made, resnet, sentences
from models import dense_jacobian, some
from truth import assert_close

import neuralef as nef
from neuralef.checks import check_points
from neuralef.gram import JacobianGram
from neuralef.jacobian.tangent import Tangent
from neuralef.kernels import NTK
from neuralef.networks import ActivationHead, Activations
from neuralef.points import call, evaluate

N = 5


def logits(model, x):
    """By the model's own interface."""
    return (model(**x) if isinstance(x, dict) else model(x)).logits


def values(model, x):
    return logits(model, x).detach()


def truth_of(case):
    """A model, its points, and its Jacobian by plain autograd."""
    model, x = case.make(), case.twin(N)
    return model, x, dense_jacobian(lambda x: logits(model, x), x, model)


@each(HUGGING_FACE)
def test_the_kernel_is_the_product_of_jacobians(case):
    model, x, jacobian = truth_of(case)
    trained = [value.numel() for value in model.parameters() if value.requires_grad]
    assert jacobian.shape == (N * OUTPUTS, sum(trained))
    for gram in (NTK(model).gram(x), JacobianGram(model, x)):
        assert gram.outputs == OUTPUTS
        assert_close(gram.to_dense(), jacobian @ jacobian.T)
    tangent = Tangent(model)
    assert_close(tangent.jacobian(check_points(x, integers=True)).flatten(0, 1), jacobian)
    assert tangent._method == "layers"


@each(HUGGING_FACE)
def test_features_are_the_jacobian_times_random_columns(case):
    model, x, jacobian = truth_of(case)
    exact = jacobian @ jacobian.T
    phi = NTK(model, samples=jacobian.shape[1], method="sketch").features(x).flatten(0, 1)
    assert_close(phi @ phi.T / phi.shape[1], exact)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: of performance
        forward = NTK(model, samples=7, method="jvp").features(x)
    assert_close(forward, NTK(model, samples=7, method="project").features(x))


@each(HUGGING_FACE)
def test_outputs_are_the_logits(case):
    model, x = case.make(), check_points(case.twin(N), integers=True)
    assert_close(call(model, x), values(model, x))
    assert_close(evaluate(model, x), values(model, x))


@each(HUGGING_FACE)
def test_a_head_reads_their_layers(case):
    model, x = case.make(), check_points(case.twin(N), integers=True)
    activations = Activations(model, x)
    assert len(activations.names) > 1
    out, seen = activations.both(x)
    assert_close(out, values(model, x))
    assert seen.shape == (N, activations.size)
    assert_close(seen[:, -OUTPUTS:], out)
    head = ActivationHead(model, k=2, outputs=OUTPUTS, seed=0, example=x)
    head.standardize(x)
    assert head(x).shape == (N, OUTPUTS, 2)


def test_batch_norms_stay_unfolded_with_a_warning():
    model, x = resnet(), images(N, side=20)
    with pytest.warns(UserWarning, match="batch norms of ResNetForImageClassification stay"):
        folded = nef.fold_batch_norm(model)
    assert_close(values(folded, x), values(model, x))
    assert_close(NTK(folded).gram(x).to_dense(), NTK(model).gram(x).to_dense())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(call(nef.fold_batch_norm(bert()), check_points(sentences(N))),
                     values(bert(), sentences(N)))  # fmt: skip


def test_what_a_tokenizer_gives_are_points():
    from transformers import BatchEncoding

    model, x = bert(), sentences(N)
    encoding = BatchEncoding({key: value.tolist() for key, value in x.items()})
    gram = NTK(model).gram(encoding)
    assert list(gram.x) == list(x)
    assert_close(gram.to_dense(), NTK(model)(x, x))


def test_labels_and_tuples_change_nothing():
    model, x = bert(), sentences(N)
    truth = NTK(model)(x, x)
    labelled = x | {"labels": torch.arange(N) % OUTPUTS}
    assert_close(NTK(model)(labelled, labelled), truth)
    model.config.return_dict = False  # (logits,) in place of a ModelOutput
    assert isinstance(model(**x), tuple)
    assert_close(NTK(model)(x, x), truth)


def test_an_eigenspace_of_the_kernel_is_found():
    model, x = bert(), sentences(12)
    spectrum = nef.Subspace(k=3).solve(NTK(model).gram(x))
    jacobian = dense_jacobian(lambda x: logits(model, x), x, model)
    eigenvalues = torch.linalg.eigvalsh(jacobian @ jacobian.T / 12).flip(0)[:3]
    assert_close(spectrum.eigenvalues, eigenvalues)
    new = sentences(4, seed=1)
    kernel = NTK(model)(new, some(x, slice(12))).reshape(4 * OUTPUTS, -1)
    psi = spectrum(x).reshape(-1, 3)
    assert_close(spectrum(new).reshape(-1, 3), kernel @ psi / 12 / eigenvalues, 1e-6)


def test_padding_has_no_gradient_and_no_forward_mode():
    """Of the embedding of padding tokens autograd makes none, which tangents do not know."""
    model, x = bert(), sentences(N)["input_ids"]
    assert not x.all()
    jacobian = dense_jacobian(lambda x: logits(model, x), x, model)
    assert_close(NTK(model)(x, x), jacobian @ jacobian.T)
    assert NTK(model, samples=4).method_for(x) == "project"


def test_outputs_that_are_no_classes_are_refused():
    from hugging_face import TINY, WORDS

    tokens = made("BertForTokenClassification", vocab_size=WORDS, **TINY)
    with pytest.raises(ValueError, match=r"got \(5, 7, 3\); of images or sequences choose the out"):
        NTK(tokens).gram(sentences(N))
    body = bert().bert
    with pytest.raises(ValueError, match=r"of last_hidden_state, pooler_output; wrap it"):
        NTK(body).gram(sentences(N))


def test_half_precision_is_refused():
    for half in (torch.bfloat16, torch.float16):
        with pytest.raises(ValueError, match=r"too coarse for derivatives: call model\.float\(\)"):
            NTK(bert().to(half)).gram(sentences(N))


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_gradient_checkpointing_is_slow_and_says_so():
    model, x = bert(), sentences(2)
    truth = NTK(model)(x, x)
    model.gradient_checkpointing_enable()
    with pytest.warns(UserWarning, match=r"turn it off.*gradient_checkpointing_disable\(\)"):
        assert_close(NTK(model.eval())(x, x), truth)
