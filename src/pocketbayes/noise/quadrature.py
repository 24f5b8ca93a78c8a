"""Expectations under any noise law: composite Gauss-Legendre panels, and Gauss rules made for the law itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from pocketbayes.noise.family import Law


class QuadratureRule(NamedTuple):
    """E g(z) = sum_j weights_j g(nodes_j), float64."""

    nodes: Tensor  # [Q]
    weights: Tensor  # [Q], they sum to one

    def mean(self, g: Callable[[Tensor], Tensor]) -> float:
        """E g(z) for an element-wise g; nodes of no weight are left out, where g may overflow."""
        seen = self.weights > 0
        return float((self.weights[seen] * g(self.nodes[seen])).sum())


@lru_cache
def gauss_legendre(order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [-1, 1], exact for polynomials of degree 2 order - 1; float64."""
    x, w = np.polynomial.legendre.leggauss(order)
    return torch.from_numpy(x), torch.from_numpy(w)


def panel_nodes(edges: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on every panel between neighbouring edges.

    Edges are [..., P + 1]; both results are [..., P * order].
    """
    x, w = gauss_legendre(order)
    half = 0.5 * edges.diff(dim=-1).unsqueeze(-1)  # [..., P, 1]
    middle = 0.5 * (edges[..., 1:] + edges[..., :-1]).unsqueeze(-1)
    return (middle + half * x.to(edges)).flatten(-2), (half * w.to(edges)).flatten(-2)


def panel_rule(law: Law) -> QuadratureRule:
    """The composite Gauss-Legendre rule for a law with a density: f(z) dz on panels split at the kinks."""
    nodes, lengths = panel_nodes(law.edges(), law.order)
    weights = (law.log_prob(nodes) + lengths.log()).exp()
    return QuadratureRule(nodes, weights / weights.sum())


def core_edges(law: Law, tolerance: float = 1e-17) -> Tensor:
    """The law's edges without the outer panels that hold less than `tolerance` of E (1 + z^2)."""
    nodes, weights = law.rule
    part = (weights * (1 + nodes.square())).nan_to_num(posinf=0.0).view(-1, law.order).sum(1)  # [P]
    kept = torch.nonzero(part > tolerance).flatten()
    return law.edges()[int(kept[0]) : int(kept[-1]) + 2]


def gauss_rule(law: Law, n: int) -> QuadratureRule:
    """The n-point Gauss rule of the law: exact for every polynomial of degree 2n - 1.

    The three-term recurrence of the law's orthogonal polynomials comes from the discretised Stieltjes procedure on
    the panel rule; nodes and weights are the eigen-decomposition of the Jacobi matrix (Golub and Welsch).
    """
    nodes, weights = _discrete_measure(law, n)
    alpha, beta = _stieltjes(nodes, weights, n)
    jacobi = np.diag(alpha) + np.diag(np.sqrt(beta), 1) + np.diag(np.sqrt(beta), -1)
    points, vectors = np.linalg.eigh(jacobi)
    return QuadratureRule(torch.from_numpy(points), torch.from_numpy(vectors[0] ** 2))


def _discrete_measure(law: Law, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The panel rule (or the atoms), as far out as z^(2n - 1) f(z) matters; an error where moments do not exist."""
    where = f"gauss_rule of {type(law).__name__} with n = {n}"
    if n < 1:
        raise ValueError(f"{where}: n must be at least 1.")
    if 2 * n - 1 >= law.moment_order():
        raise ValueError(
            f"{where}: needs moments up to {2 * n - 1}, which exist below {law.moment_order():g} only. "
            "Use fewer points, or the panel rule `law.rule`."
        )
    nodes, weights = (part.numpy() for part in law.rule)
    if law.has_atoms and n > nodes.size:
        raise ValueError(f"{where}: the law has {nodes.size} atoms. Use n <= {nodes.size}.")
    with np.errstate(divide="ignore"):
        size = np.log(weights) + (2 * n - 1) * np.log(np.maximum(np.abs(nodes), 1.0))  # ln |z|^(2n-1) f dz
    if not law.has_atoms and max(size[0], size[-1]) > size.max() - 23 and np.isinf(law.support()).any():
        raise ValueError(
            f"{where}: z^{2 * n - 1} f(z) is not negligible at the outermost panel. Use fewer points."
        )
    kept = size > size.max() - 80
    return nodes[kept], weights[kept]


def _stieltjes(nodes: np.ndarray, weights: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Recurrence coefficients alpha [n], beta [n - 1] of the polynomials orthogonal under sum_j w_j delta(z_j).

    p_{k+1} = (z - alpha_k) p_k - beta_k p_{k-1}, each p_k scaled to unit norm against overflow.
    """
    alpha, beta = np.empty(n), np.empty(max(n - 1, 0))
    previous, current = np.zeros_like(nodes), np.full_like(nodes, 1 / np.sqrt(weights.sum()))
    for k in range(n):
        alpha[k] = np.sum(weights * nodes * current**2)
        following = (nodes - alpha[k]) * current - (np.sqrt(beta[k - 1]) * previous if k else 0.0)
        if k < n - 1:
            beta[k] = np.sum(weights * following**2)
            previous, current = current, following / np.sqrt(beta[k])
    return alpha, beta
