import pytest
import torch
from cases import each
from models import MODELS, OUTPUTS, count, dense_jacobian, ids, mlp, sentences, some
from torch import nn
from truth import assert_close, points

from neuralef.gram import FeatureGram, JacobianGram
from neuralef.kernels import NTK, RBF, Coregional, ntk
from neuralef.sketching import CountSketch, random_signs

N, S = 5, 70  # S crosses a word of 64 signs


def signs(rows, seed=0):
    return random_signs(rows, range(S), seed, torch.float64, torch.device("cpu"))


@each(MODELS)
def test_the_exact_kernel_is_the_product_of_jacobians(case):
    model, x, other = case.make(), case.twin(N), case.twin(3, seed=1)
    first, second = dense_jacobian(model, x), dense_jacobian(model, other)
    kernel = NTK(model)
    assert kernel.method_for(x) == "exact"
    assert_close(kernel(x, other), first @ second.T)
    assert_close(kernel(x, x), first @ first.T)
    diagonal, gram = first.square().sum(1), kernel.gram(x)
    assert_close(kernel.diagonal(x), diagonal if gram.outputs == 1 else diagonal.view(N, -1))


@each(MODELS)
def test_the_exact_gram_is_the_product_of_jacobians(case):
    model, x = case.make(), case.twin(N)
    jacobian = dense_jacobian(model, x)
    gram = NTK(model).gram(x)
    assert isinstance(gram, JacobianGram)
    assert (gram.rows, gram.features, gram.independent) == (*jacobian.shape, False)
    psi = points(len(jacobian), 4, seed=2)
    shaped = psi if gram.outputs == 1 else psi.view(N, -1, 4)
    assert_close(gram.to_dense(), jacobian @ jacobian.T)
    assert_close(gram @ shaped, (jacobian @ (jacobian.T @ psi)).view_as(shaped))
    assert_close(gram.diagonal().flatten(), jacobian.square().sum(1))
    assert_close(gram.mean_diagonal(), jacobian.square().sum()[None] / N)
    assert_close(gram.normal(points(gram.features, 2)[None])[0],
                 jacobian.T @ (jacobian @ points(gram.features, 2)))  # fmt: skip
    for index in (slice(1, 4), torch.tensor([4, 0, 0])):
        rows = torch.arange(len(jacobian)).view(N, -1)[index].flatten()
        assert_close(gram[index].to_dense(), jacobian[rows] @ jacobian[rows].T)


@pytest.mark.parametrize("method", ["project", "jvp"])
@each(MODELS)
def test_both_exact_methods_give_the_jacobian_times_the_same_signs(case, method):
    model, x = case.make(), case.twin(N)
    jacobian = dense_jacobian(model, x)
    kernel = NTK(model, S, method, seed=3)
    truth = jacobian @ signs(jacobian.shape[1], seed=3)
    phi = kernel.features(x)
    assert phi.shape == (N, *kernel.layout(x).point, S)
    assert_close(phi.flatten(0, -2), truth)
    assert_close(kernel(x, x), truth @ truth.T / S)
    assert_close(kernel.diagonal(x).flatten(), truth.square().mean(1))


@each(MODELS)
def test_a_sketch_is_sums_of_columns_of_the_jacobian(case):
    model, x = case.make(), case.twin(N)
    jacobian = dense_jacobian(model, x)
    kernel = NTK(model, 7, "sketch", seed=3)
    columns = torch.eye(jacobian.shape[1], dtype=torch.float64)
    truth = jacobian @ CountSketch(len(columns), 7, 3, columns.dtype, columns.device)(columns)
    assert_close(kernel.features(x).flatten(0, -2), truth)
    assert_close(kernel(x, x), truth @ truth.T / 7)
    assert_close(kernel.diagonal(x).flatten(), truth.square().mean(1))


@each(MODELS)
def test_a_sketch_of_as_many_samples_as_weights_is_exact(case):
    model, x = case.make(), case.twin(N)
    jacobian = dense_jacobian(model, x)
    for samples in (jacobian.shape[1], jacobian.shape[1] + 13):
        assert_close(NTK(model, samples, "sketch")(x, x), jacobian @ jacobian.T)


@each(MODELS)
def test_finite_differences_come_close(case):
    model, x = case.make(), case.twin(N)
    jacobian = dense_jacobian(model, x)
    truth = jacobian @ signs(jacobian.shape[1])
    errors = []
    for epsilon in (1e-4, 1e-5, 1e-6):
        phi = NTK(model, S, "finite_difference", epsilon=epsilon).features(x).flatten(0, -2)
        errors.append(float((phi - truth).norm() / truth.norm()))
    assert errors[1] < 1e-3, errors
    assert errors[2] < 0.2 * errors[1] < 0.04 * errors[0], errors  # of first order


@pytest.mark.parametrize("method", ["sketch", "project"])
def test_the_sampled_kernel_is_unbiased_and_converges_as_the_root_of_the_samples(method):
    model, x, seeds = mlp(1, width=1500), points(4, 3), 150  # of more weights than samples
    exact = NTK(model)(x, x)
    errors = []
    for samples in (32, 512):
        features = [NTK(model, samples, method, seed).features(x) for seed in range(seeds)]
        drawn = torch.stack([phi @ phi.T / samples for phi in features])
        errors.append(float((drawn - exact).square().mean().sqrt()))
        noise = drawn.std(0) / seeds**0.5
        assert bool(((drawn.mean(0) - exact).abs() < 4 * noise).all())
    assert 3.2 < errors[0] / errors[1] < 5, errors  # √16 = 4
    assert errors[1] < 0.1 * float(exact.abs().max())


@pytest.mark.parametrize(("samples", "method"), [(None, None), (S, "project"), (S, "sketch")])
def test_only_parameters_that_require_gradients_count(samples, method):
    x = points(N, 3)
    kernels = []
    for frozen in ((), ("0.weight", "2.bias"), ("0.bias", "2.weight")):
        model = mlp()
        for name in frozen:
            model.get_parameter(name).requires_grad_(False)
        jacobian = dense_jacobian(model, x)
        if method == "project":
            jacobian = jacobian @ signs(jacobian.shape[1]) / S**0.5
        kernels.append(NTK(model, samples, method)(x, x))
        assert_close(kernels[-1], jacobian @ jacobian.T)
    if samples is None:
        assert_close(kernels[1] + kernels[2], kernels[0])


def test_freezing_later_does_not_change_a_kernel():
    model, x = mlp(), points(N, 3)
    kernel = NTK(model, S)
    before = kernel.features(x)
    model.requires_grad_(False)
    assert torch.equal(kernel.features(x), before)


@pytest.mark.parametrize(
    ("samples", "outputs", "method"),
    [
        (None, 1, "exact"),
        (4, 1, "jvp"),
        (5, 1, "project"),
        (8, 2, "jvp"),
        (9, 2, "project"),
        (255, 2, "project"),
        (256, 2, "sketch"),
        (256, 64, "jvp"),
        (257, 64, "sketch"),
    ],
)
def test_the_cheaper_method_is_chosen(samples, outputs, method):
    assert NTK(mlp(outputs), samples).method_for(points(2, 3)) == method


@pytest.mark.parametrize("method", ["project", "jvp", "finite_difference"])
def test_signs_too_large_for_memory_are_made_in_parts(method, monkeypatch):
    kernel, x = NTK(mlp(), 200, method), points(N, 3)
    phi = kernel.features(x)
    monkeypatch.setitem(ntk.SIGNS_AT_ONCE, "cpu", 100)
    monkeypatch.setattr(ntk, "TANGENTS_AT_ONCE", 1)
    made = []
    monkeypatch.setattr(
        ntk, "random_signs", lambda *given: made.append(given[1]) or random_signs(*given)
    )
    assert_close(kernel.features(x), phi)
    assert made == [range(0, 64), range(64, 128), range(128, 192), range(192, 200)]


@pytest.mark.parametrize(("outputs", "method"), [(12, "project"), (13, "jvp")])
def test_jacobians_are_made_again_as_long_as_that_is_cheaper(outputs, method, monkeypatch):
    kernel = NTK(mlp(outputs), 200)
    x = points(2, 3)
    assert kernel.method_for(x) == "project"
    monkeypatch.setitem(ntk.SIGNS_AT_ONCE, "cpu", 1)  # four passes cost 4 · 4 · c forward ones
    assert kernel.method_for(x) == method


@pytest.mark.parametrize("method", ["sketch", "project", "jvp", "finite_difference"])
@each(MODELS)
def test_new_points_share_what_is_drawn(case, method):
    model, x = case.make(), case.twin(N)
    kernel = NTK(model, S, method)
    gram = kernel.gram(x)
    assert isinstance(gram, FeatureGram)
    assert gram.layout == kernel.layout(x)
    new = some(x, torch.tensor([3, 1]))
    assert_close(gram.feature_map(new), gram.phi[[3, 1]], 1e-8)
    assert_close(NTK(model, S, method).features(new), gram.phi[[3, 1]], 1e-8)
    assert_close(gram.to_dense(), kernel(x, x), 1e-8)
    other = NTK(model, S, method, seed=1).features(x)
    assert float((other - gram.phi).abs().max()) > 0.1 * float(gram.phi.abs().max())


@pytest.mark.parametrize("method", ["sketch", "project", "jvp"])
def test_the_features_of_single_precision_are_those_of_double(method):
    x = points(N, 3)
    phi = NTK(mlp().float(), S, method).features(x.float())
    assert phi.dtype == torch.float32
    truth = NTK(mlp(), S, method).features(x)
    torch.testing.assert_close(phi.double(), truth, rtol=0, atol=1e-5 * float(truth.abs().max()))


@each(MODELS)
def test_kernels_compose_after_prepare(case):
    model, x = case.make(), case.twin(N)
    jacobian = dense_jacobian(model, x)
    kernel = NTK(model)
    assert kernel.layout(x).outputs == len(jacobian) // count(x)
    gram = (0.5 * kernel + NTK(model)).gram(x)
    assert_close(gram.to_dense().detach(), 1.5 * jacobian @ jacobian.T)
    assert_close(gram.diagonal().detach().flatten(), 1.5 * jacobian.square().sum(1))
    assert float(gram.rounding().max()) < 1e-10 * float(gram.mean_diagonal().max())


def test_an_ntk_joins_classic_kernels_of_as_many_outputs():
    model, x = mlp(), points(N, 3)
    jacobian = dense_jacobian(model, x)
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    joint = NTK(model) + Coregional(RBF(), covariance)
    truth = jacobian @ jacobian.T + torch.kron(RBF()(x, x), covariance)
    assert_close(joint.gram(x).to_dense().detach(), truth.detach())
    with pytest.raises(ValueError, match=f"{OUTPUTS} and 1 outputs"):
        (NTK(model) + RBF()).gram(x)


def test_dropout_in_eval_mode_and_other_modules_are_fine():
    model = nn.Sequential(
        nn.Linear(3, 4), nn.LayerNorm(4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 2)
    )
    model, x = model.double().eval(), points(N, 3)
    jacobian = dense_jacobian(model, x)
    assert_close(NTK(model)(x, x), jacobian @ jacobian.T)
    assert_close(
        NTK(model, S, "jvp").features(x).flatten(0, 1), jacobian @ signs(jacobian.shape[1])
    )


def test_a_kernel_leaves_model_and_random_state_alone():
    model = mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    for samples in (None, 3, S):
        NTK(model, samples)(points(N, 3), points(N, 3))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None and value.requires_grad for value in model.parameters())
    assert not any(hooks for module in model.modules() for hooks in [module._forward_hooks])


def test_token_ids_stay_integers_and_sentences_may_be_longer():
    case = MODELS[6]
    model = case.make()
    kernel = NTK(model, S)
    gram = kernel.gram(ids(N))
    assert gram.x.dtype == torch.int64
    assert gram.dtype == torch.float64
    assert gram.feature_map(ids(2, length=9)).shape == (2, OUTPUTS, S)
    assert NTK(model).gram(sentences(N)).dtype == torch.float64


def test_a_kernel_keeps_the_model_as_it_was():
    model, x = mlp(), points(20, 3)
    kernel = NTK(model)
    gram, before = kernel.gram(x), kernel(x, x)
    with torch.no_grad():
        model[0].weight.mul_(2)
    model.train()
    torch.testing.assert_close(gram.to_dense(), before)
    assert model[0].weight.requires_grad


def test_points_that_want_gradients_have_sketches_in_inference_mode():
    kernel, x = NTK(mlp(), samples=11, method="sketch"), points(4, 3).requires_grad_()
    truth = kernel.features(x.detach())
    with torch.inference_mode():
        found = kernel.features(x)
    torch.testing.assert_close(found.detach(), truth)


def test_sampled_features_and_exact_blocks_are_differentiable_in_the_points():
    model, x = mlp(), points(3, 3).requires_grad_()
    for samples in (4, 40):  # by forward mode, and by projection
        assert torch.autograd.gradcheck(NTK(model, samples=samples).features, x)
    assert torch.autograd.gradcheck(lambda v: NTK(model)(v, points(2, 3, seed=1)), x)


def test_kernels_of_models_compose_once_they_have_seen_points():
    model, x = mlp(1), points(12, 3)
    centred = NTK(model).centered(x)  # sees them here
    K = NTK(model)(x, x)
    H = torch.eye(12).double() - 1 / 12
    torch.testing.assert_close(centred(x, x), H @ K @ H)
    total = 2.0 * NTK(model) + RBF()
    torch.testing.assert_close(total(x, x), 2 * K + RBF()(x, x))
    assert (2.0 * NTK(model)).layout(x) == NTK(model).layout(x)


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"samples": 0}, ValueError, "samples must be at least 1"),
        ({"samples": 2.5}, TypeError, "samples must be a whole number"),
        ({"samples": 4, "method": "fast"}, ValueError, "exact, sketch, project, jvp, finite"),
        ({"samples": 4, "method": "exact"}, ValueError, "'exact' takes no samples"),
        ({"method": "jvp"}, ValueError, "'jvp' needs samples"),
        ({"method": "project"}, ValueError, "'project' needs samples"),
        ({"method": "sketch"}, ValueError, "'sketch' needs samples"),
        ({"samples": 4, "seed": -1}, ValueError, "seed"),
        ({"samples": 4, "epsilon": 0.0}, ValueError, "epsilon must be positive"),
    ],
)
def test_settings_out_of_range(settings, error, says):
    with pytest.raises(error, match=says):
        NTK(mlp(), **settings)


def test_outputs_show_on_points_and_features_need_samples():
    assert NTK(mlp()).outputs is None
    assert NTK(mlp()).layout(points(2, 3)).outputs == OUTPUTS
    with pytest.raises(ValueError, match="samples=s"):
        NTK(mlp()).features(points(3, 3))


def test_a_kernel_tells_its_parameters():
    assert repr(NTK(mlp())) == "NTK(Sequential)"
    assert repr(NTK(mlp(), 64)) == "NTK(Sequential, samples=64, seed=0)"
    kernel = NTK(mlp(), 64, "finite_difference", seed=3, epsilon=1e-4)
    says = "NTK(Sequential, samples=64, method='finite_difference', seed=3, epsilon=0.0001)"
    assert repr(kernel) == says
    assert "NTK(Sequential)" in repr(2.0 * NTK(mlp()) + RBF())
