"""Softmax regression and perceptrons in NumPy, for many clients in one call.

A chunk is G clients that train together. One step of a chunk takes a few dozen NumPy calls, however large G
is. These calls multiply inputs (G, b, in) by weights (G, in, out), which hold one model per client. The
models and mini-batches of a chunk fit into the cache of a core and stay there for all steps. If the model is
large, a chunk is one client.

If the model has one layer, and every client takes a single step without control variates, the updates are
stored as two factors, the inputs and the errors. Their product, which would be as large as one model per
client, is not computed.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, repeat
from math import nan
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from strategies.numerics.arrays import Floats, Ints
from strategies.rounds.trained_clients import ClientUpdates
from tasks.base import Arrays, GradientVariance, Metrics
from tasks.federated_data import Dataset, FederatedData

from .base import Floats32, Kernel, MiniBatches, Plan, StackedUpdates, Trained, chunked, squared_norm

_CACHE = 1 << 19  # limit on a chunk's models, gradients and mini-batches, in bytes
_ROWS = 4096  # samples per step of an evaluation
_PAIRED = 64  # samples per matrix of pairwise products


class _Layer(NamedTuple):
    """The position of a layer's parameters in a row of all parameters."""

    fan_in: int
    fan_out: int
    weight: str
    bias: str  # "" = no bias
    begin: int  # where the weight (fan_in, fan_out) begins; the bias follows the weight

    @property
    def middle(self) -> int:
        return self.begin + self.fan_in * self.fan_out

    @property
    def end(self) -> int:
        return self.middle + (self.fan_out if self.bias else 0)


class Dense(Kernel):
    """Dense layers with ReLU between them, then softmax and cross-entropy.

    ``sizes``: Features, hidden units of each layer, classes. ``names``: the names of each layer's weight and
    bias; "" = no bias. ``transposed``: True: weights have the shape (out, in), as in torch. False: (in, out).
    ``dropout`` (default: 0.0): the probability with which a unit of the first hidden layer is 0, drawn anew
    for each sample and step. The other units are divided by 1 - dropout, so evaluations use all units as they
    are.
    """

    def __init__(
        self, sizes: Sequence[int], names: Sequence[tuple[str, str]], transposed: bool, dropout: float = 0.0
    ) -> None:
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout = {dropout}: must be in [0, 1)")
        if dropout and len(sizes) < 3:
            raise ValueError(f"dropout = {dropout}: must be 0 without a hidden layer")
        self._transposed, self._dropout = transposed, dropout
        self._layers: list[_Layer] = []
        end = 0
        for (fan_in, fan_out), (weight, bias) in zip(pairwise(sizes), names, strict=True):
            self._layers.append(_Layer(fan_in, fan_out, weight, bias, end))
            end = self._layers[-1].end
        self.num_parameters = end

    def check(self, data: FederatedData) -> None:
        data.check(self._layers[0].fan_in, self._layers[-1].fan_out)

    # --- training --------------------------------------------------------------------------------------

    def train(
        self,
        arrays: Arrays,
        data: FederatedData,
        clients: Ints,
        plan: Plan,
        controls: Mapping[int, Arrays] | None = None,
    ) -> Trained:
        steps, widths = plan.work(data, clients)
        if len(self._layers) == 1 and controls is None and (steps == 1).all():
            return self._train_one_step(arrays, data, clients, plan, widths)
        start = self._row(arrays)
        rows = np.empty((clients.size, start.size), dtype=np.float32)
        losses, variances = np.empty(clients.size), np.full(clients.size, nan)
        for chunk in chunked(steps, widths, self._capacity):
            each = None
            if controls is not None:
                each = np.stack([self._row(controls[int(client)]) for client in clients[chunk]])
            work = MiniBatches(data, clients[chunk], plan, int(steps[chunk[0]]), widths[chunk])
            models = rows[chunk] if chunk.size > 1 else rows[chunk[0] : chunk[0] + 1]
            models[:] = start
            losses[chunk], variances[chunk] = self._train_chunk(models, start, work, plan, each)
            models -= start
            if chunk.size > 1:
                rows[chunk] = models
        return Trained(StackedUpdates(rows, arrays, self._split), losses, variances)

    def chunks(self, data: FederatedData, clients: Ints, plan: Plan, controlled: bool = False) -> list[Ints]:
        steps, widths = plan.work(data, clients)
        if len(self._layers) == 1 and not controlled and (steps == 1).any():
            # If all clients of a call take one step, `train` stores factors, which round differently than
            # updates do. A smaller chunk could have only clients with one step, and then the result would
            # depend on the chunks. So all clients are one chunk.
            return [np.arange(clients.size)]
        return chunked(steps, widths, self._capacity)

    def _capacity(self, width: int) -> int:
        """Return how many clients with mini-batches of ``width`` samples fit into the cache."""
        inputs = sum(layer.fan_in for layer in self._layers)  # numbers per sample that enter the layers
        return _CACHE // (4 * (2 * self.num_parameters + width * inputs))

    def _train_chunk(
        self, models: Floats32, start: Floats32, work: MiniBatches, plan: Plan, controls: Floats32 | None
    ) -> tuple[Floats, list[float]]:
        """Train the models of G clients in place; return (G,) mean losses and gradient variances."""
        moves = np.empty_like(models)  # learning rate times gradient
        weights, biases = self._views(models)
        weight_moves, bias_moves = self._views(moves)
        outputs = [np.empty((*work.shape, layer.fan_out), dtype=np.float32) for layer in self._layers]
        backs = [np.empty_like(output) for output in outputs[:-1]]
        masks_of_relu = [np.empty(output.shape, dtype=np.bool_) for output in outputs[:-1]]
        # Views that every step uses are made once.
        transposed_weights = [weight.transpose(0, 2, 1) for weight in weights]
        transposed_outputs = [output.transpose(0, 2, 1) for output in outputs]
        bias_rows = [move[:, None, :] for move in bias_moves]
        scales = work.shares * np.float32(plan.learning_rate)
        ones = np.ones((1, work.shape[1]), dtype=np.float32)
        variances = [GradientVariance() for _ in models] if plan.measure_variance else []
        log_likelihoods = _LogLikelihoods(work.steps, work.shape)
        masks = work.masks(self._layers[0].fan_out, self._dropout) if self._dropout else repeat(None)
        for (inputs, labels), mask in zip(work, masks, strict=False):
            self._forward(inputs, weights, biases, outputs, mask)
            errors = outputs[-1]
            log_likelihoods.take(errors, labels, scales)
            for number in reversed(range(len(self._layers))):
                below = transposed_outputs[number - 1] if number else inputs.transpose(0, 2, 1)
                np.matmul(below, errors, out=weight_moves[number])
                if bias_moves[number].size:
                    np.matmul(ones, errors, out=bias_rows[number])
                if number:
                    back, positive = backs[number - 1], masks_of_relu[number - 1]
                    np.matmul(errors, transposed_weights[number], out=back)
                    np.greater(outputs[number - 1], 0, out=positive)
                    np.multiply(back, positive, out=back)
                    if mask is not None and number == 1:
                        back *= mask
                    errors = back
            if variances:
                for variance, move in zip(variances, moves, strict=True):
                    variance.add([move])
            if plan.proximal_mu:
                moves += np.float32(plan.learning_rate * plan.proximal_mu) * (models - start)
            if controls is not None:
                moves += np.float32(plan.learning_rate) * controls
            models -= moves
        losses = -np.einsum("sgb,gb->g", log_likelihoods.values(), work.shares, dtype=np.float64) / work.steps
        rate = plan.learning_rate**2
        return losses, [each.value / rate for each in variances] or [nan] * len(models)

    def _train_one_step(
        self, arrays: Arrays, data: FederatedData, clients: Ints, plan: Plan, widths: Ints
    ) -> Trained:
        """Take one step for all clients. All their samples pass through the same model at once."""
        layer = self._layers[0]
        weight = arrays[layer.weight].T if self._transposed else arrays[layer.weight]
        if weight.dtype != np.float32 or not weight.flags.c_contiguous:
            weight = np.ascontiguousarray(weight, dtype=np.float32)  # BLAS adds in another order otherwise
        bias = arrays[layer.bias].astype(np.float32, copy=False) if layer.bias else np.empty(0, np.float32)
        first = data.offsets[clients]
        ends = np.cumsum(widths)
        index = np.arange(ends[-1]) + np.repeat(first - (ends - widths), widths)
        for row in np.flatnonzero(widths < data.offsets[clients + 1] - first).tolist():
            begin, end, client = int(ends[row] - widths[row]), int(ends[row]), int(clients[row])
            size = int(data.offsets[client + 1] - first[row])
            index[begin:end] = first[row] + next(plan.batches(client, size, 1))
        inputs, labels = data.inputs[index], data.labels[index]
        errors = np.empty((1, len(index), self._layers[0].fan_out), dtype=np.float32)
        self._forward(inputs[None], [weight[None]], [bias[None]], [errors])
        shares = np.repeat(1 / widths, widths)
        log_likelihoods = _LogLikelihoods(1, (1, len(index)))
        log_likelihoods.take(errors, labels, (shares * plan.learning_rate).astype(np.float32)[None])
        losses = -np.add.reduceat(log_likelihoods.values()[0, 0] * shares, ends - widths)
        updates = _OneStep(inputs, errors[0], widths, arrays, layer, self._transposed)
        return Trained(updates, losses, np.full(clients.size, nan))

    def _forward(
        self,
        inputs: Floats32,
        weights: list[Floats32],
        biases: list[Floats32],
        outputs: list[Floats32],
        mask: Floats32 | None = None,
    ) -> None:
        """Fill the layers' outputs (G, b, out), the first times ``mask`` (G, b, out); last: logits."""
        below = inputs
        for weight, bias, output in zip(weights, biases, outputs, strict=True):
            np.matmul(below, weight, out=output)
            if bias.size:
                output += bias[:, None, :]
            if output is not outputs[-1]:
                np.maximum(output, 0, out=output)
            if mask is not None and output is outputs[0]:
                output *= mask
            below = output

    # --- evaluation ------------------------------------------------------------------------------------

    def losses(self, arrays: Arrays, data: FederatedData, clients: Ints) -> Floats:
        sizes = data.offsets[clients + 1] - data.offsets[clients]
        losses = np.empty(clients.size)
        ends = np.cumsum(sizes)
        begin = 0
        while begin < clients.size:  # the next clients with at most _ROWS samples in all, or one client
            before = ends[begin] - sizes[begin]
            end = max(begin + 1, int(np.searchsorted(ends, before + _ROWS, side="right")))
            part = slice(begin, end)
            index = np.concatenate(
                [np.arange(data.offsets[m], data.offsets[m + 1]) for m in clients[part].tolist()]
            )
            sample_losses, _ = self._sample_losses(arrays, data.inputs[index], data.labels[index])
            starts = ends[part] - sizes[part] - before
            losses[part] = np.add.reduceat(sample_losses, starts) / sizes[part]
            begin = end
        return losses

    def evaluate(self, arrays: Arrays, data: Dataset) -> Metrics:
        loss = correct = 0.0
        for begin in range(0, len(data), _ROWS):
            rows = slice(begin, begin + _ROWS)
            losses, hits = self._sample_losses(arrays, data.inputs[rows], data.labels[rows])
            loss += float(losses.sum())
            correct += float(hits.sum())
        return Metrics(loss / len(data), correct / len(data))

    def _sample_losses(
        self, arrays: Arrays, inputs: Floats32, labels: NDArray[np.int64]
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Return (n,) the loss of each sample, in float64, and (n,) whether its prediction is correct."""
        weights, biases = self._views(self._row(arrays)[None])
        outputs = [np.empty((1, len(inputs), layer.fan_out), dtype=np.float32) for layer in self._layers]
        self._forward(inputs[None], weights, biases, outputs)
        logits = outputs[-1][0]
        logits -= logits.max(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        own = logits[rows, labels].astype(np.float64)
        hits = logits.argmax(axis=1) == labels
        losses: Floats = np.log(np.exp(logits).sum(axis=1, dtype=np.float64)) - own
        return losses, hits

    # --- parameters as a row ---------------------------------------------------------------------------

    def _row(self, arrays: Arrays) -> Floats32:
        """Return (P,) all parameters, weights as (in, out); a copy."""
        row = np.empty(self.num_parameters, dtype=np.float32)
        for layer in self._layers:
            weight = arrays[layer.weight].T if self._transposed else arrays[layer.weight]
            row[layer.begin : layer.middle].reshape(layer.fan_in, layer.fan_out)[:] = weight
            if layer.bias:
                row[layer.middle : layer.end] = arrays[layer.bias]
        return row

    def _split(self, row: Floats32) -> Arrays:
        arrays: Arrays = {}
        for layer in self._layers:
            weight = row[layer.begin : layer.middle].reshape(layer.fan_in, layer.fan_out)
            arrays[layer.weight] = np.ascontiguousarray(weight.T) if self._transposed else weight
            if layer.bias:
                arrays[layer.bias] = row[layer.middle : layer.end]
        return arrays

    def _views(self, rows: Floats32) -> tuple[list[Floats32], list[Floats32]]:
        """Return views of each layer's weights (G, in, out) and biases (G, out) in rows (G, P)."""
        return (
            [
                rows[:, layer.begin : layer.middle].reshape(-1, layer.fan_in, layer.fan_out)
                for layer in self._layers
            ],
            [rows[:, layer.middle : layer.end] for layer in self._layers],
        )


class Softmax(Dense):
    """The model of `tasks.models.softmax`: ``weight`` (features, classes), ``bias`` (classes,)."""

    def __init__(self, features: int = 784, classes: int = 10, *, bias: bool = True) -> None:
        super().__init__((features, classes), [("weight", "bias" if bias else "")], transposed=False)

    def initial_arrays(self, seed: int) -> Arrays:
        return self._split(np.zeros(self.num_parameters, dtype=np.float32))


class MLP(Dense):
    """A perceptron with the names, shapes and initial distribution of torch's Sequential(Linear, ReLU, ...).

    ``sizes`` are the features, hidden units and classes: ``(784, 64, 30, 10)``. For ``dropout`` see `Dense`.
    """

    def __init__(self, sizes: Sequence[int], *, dropout: float = 0.0) -> None:
        names = [(f"{2 * number}.weight", f"{2 * number}.bias") for number in range(len(sizes) - 1)]
        super().__init__(sizes, names, transposed=True, dropout=dropout)

    def initial_arrays(self, seed: int) -> Arrays:
        random = np.random.default_rng(seed)
        arrays: Arrays = {}
        for layer in self._layers:
            bound = layer.fan_in**-0.5
            shape = (layer.fan_out, layer.fan_in)
            arrays[layer.weight] = random.uniform(-bound, bound, shape).astype(np.float32)
            arrays[layer.bias] = random.uniform(-bound, bound, layer.fan_out).astype(np.float32)
        return arrays


class _OneStep(ClientUpdates):
    """Updates after one step of a model of one layer: w_m - w_t = -X_m' E_m, stored as X and E.

    X (n, in) are the inputs. E (n, out) is the learning rate times the gradient of the loss at the outputs.
    Samples are sorted by client; ``widths`` (R,) are the numbers of samples of each client.
    """

    def __init__(
        self,
        inputs: Floats32,
        errors: Floats32,
        widths: Ints,
        arrays: Arrays,
        layer: _Layer,
        transposed: bool,
    ) -> None:
        self._inputs, self._errors, self._widths, self._arrays = inputs, errors, widths, arrays
        self._layer, self._transposed = layer, transposed
        self._ends = np.cumsum(widths)

    def norms(self) -> Floats:
        # ||X'E||² is the sum of (x·x')(e·e') over all pairs of a client's samples.
        squares = np.empty(self._widths.size)
        begin = 0
        while begin < squares.size:  # the next clients with at most _PAIRED samples, or one client
            before = self._ends[begin] - self._widths[begin]
            end = max(begin + 1, int(np.searchsorted(self._ends, before + _PAIRED, side="right")))
            rows = slice(before, self._ends[end - 1])
            inputs, errors = self._inputs[rows], self._errors[rows]
            if len(inputs) > _PAIRED:  # one client with many samples: X'E is cheaper
                named = self._named(inputs, errors)
                squares[begin] = sum(squared_norm(array.reshape(-1)) for array in named.values())
                begin = end
                continue
            pairs = inputs @ inputs.T
            if self._layer.bias:
                pairs += 1  # the bias is the weight of an input that is always 1
            pairs *= errors @ errors.T
            starts = self._ends[begin:end] - self._widths[begin:end] - before
            blocks = np.add.reduceat(np.add.reduceat(pairs, starts, axis=0), starts, axis=1)
            squares[begin:end] = blocks.diagonal()
            begin = end
        return np.sqrt(np.maximum(squares, 0, out=squares), out=squares)

    def combined(self, coefficients: Floats) -> Arrays:
        inputs, errors = self._inputs, self._errors
        factors = np.repeat(-coefficients.astype(np.float32), self._widths)
        if not coefficients.all():  # an update with coefficient 0 may be NaN
            used = factors != 0
            inputs, errors, factors = inputs[used], errors[used], factors[used]
        return self._named(inputs, errors * factors[:, None])

    def model(self, row: int) -> Mapping[str, NDArray[Any]]:
        rows = slice(self._ends[row] - self._widths[row], self._ends[row])
        moves = self._named(self._inputs[rows], -self._errors[rows])
        return {name: array + moves[name] for name, array in self._arrays.items()}

    def _named(self, inputs: Floats32, errors: Floats32) -> Arrays:
        """Return X'E for the weight, and the sum of E for the bias."""
        named = {self._layer.weight: errors.T @ inputs if self._transposed else inputs.T @ errors}
        if self._layer.bias:
            named[self._layer.bias] = errors.sum(axis=0)
        return named


class _LogLikelihoods:
    """The log-likelihood of each sample in each step under the softmax: (steps, G, b)."""

    def __init__(self, steps: int, shape: tuple[int, int]) -> None:
        self._own = np.empty((steps, *shape), dtype=np.float32)
        self._totals = np.empty((steps, *shape), dtype=np.float32)
        self._samples = np.arange(shape[0] * shape[1])
        self._steps = 0

    def take(self, logits: Floats32, labels: NDArray[np.int64], scales: Floats32) -> None:
        own, totals = self._own[self._steps], self._totals[self._steps]
        self._steps += 1
        logits -= np.maximum.reduce(logits, axis=2, keepdims=True)
        flat = logits.reshape(-1)  # a view
        at = self._samples * logits.shape[2]
        at += labels.reshape(-1)
        flat.take(at, out=own.reshape(-1), mode="clip")
        np.exp(logits, out=logits)
        np.add.reduce(logits, axis=2, out=totals)
        logits *= (scales / totals)[:, :, None]
        flat[at] -= scales.reshape(-1)

    def values(self) -> Floats32:
        values: Floats32 = self._own - np.log(self._totals)
        return values
