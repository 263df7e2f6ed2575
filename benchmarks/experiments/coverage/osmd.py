"""The items of the OSMD paper, in its first and its later version."""

from dataclasses import replace

from benchmarks.experiments.coverage.row import Paper, Row

_TITLE = (
    "Zhao, Wang, Kolar, *Adaptive Client Sampling in Federated Learning via Online Learning with Bandit "
    "Feedback*"
)
_BOUND = "It holds, far above the regret; the bound of any p ≥ α/M is much nearer."
_SLOW = "With the constants of its proof it holds, far above the gradient"
_LOOSE = "With the constants of Theorem 2's proof it holds, far above the gradient."
_DISTINCT = (
    "The feedback has the weights of the updates, since 1/(K p) would bias it. The proposition's second "
    "half, that the p of least loss also has the least error, does not hold in general: for λ‖g‖ = 3, 1, 1 "
    "in orthogonal directions and K = 2, p ∝ λ‖g‖ has an error of 4.400, and the best p has 4.392."
)
_FILES = "KMNIST and Fashion-MNIST need their data files, which could not be had here."
_SKEWED = ("osmd-g", "osmd-g-kmnist", "osmd-g-fashion-mnist")
_BALANCED = ("osmd-g-balanced", "osmd-g-kmnist-balanced", "osmd-g-fashion-mnist-balanced")
_AUTHORS = ("osmd-g-authors", "osmd-g-kmnist-authors", "osmd-g-fashion-mnist-authors")
_F1 = ("osmd-f1", "osmd-f-std", "osmd-f-authors")
_F2 = ("osmd-f2", "osmd-f-std", "osmd-f-authors")

_FIGURE_1 = Row(
    "Figure 1",
    "Adaptive-OSMD, uniform and optimal sampling",
    "in part",
    "With the printed rates p hardly moves; in the authors' setting the claim holds for large σ.",
    _F1,
)
_FIGURE_2 = Row(
    "Figure 2",
    "Adaptive-OSMD, MABS, VRB and Avare",
    "in part",
    "In the authors' setting ahead of MABS and VRB at every σ with the scale-free γ, at σ = 3 and 10 with "
    "the printed γ; not ahead of Avare that asks for norms first.",
    _F2,
)
_FIGURE_3 = Row(
    "Figure 3",
    "six values of the floor α",
    "reached",
    "Where p moves at all, it is robust to α.",
    ("osmd-f3",),
)
_REPLACEMENT = Row(
    "Figure 4",
    "draws with and without replacement",
    "reached",
    "With replacement is slightly better.",
    ("osmd-f4",),
)
_LIPSCHITZ = Row(
    "Figure 5",
    "against p fixed by Lipschitz constants",
    "not reached",
    "With larger rates the regret is smaller, but the loss is the same.",
    ("osmd-f5",),
)
_SIZES = Row(
    "Figure 9",
    "sizes of the clients in the skewed split",
    "built",
    "These sizes are the input of the experiments; the histogram itself is not drawn.",
    _SKEWED,
)
_REAL = Row(
    "Figure 10",
    "logistic regression, skewed sizes",
    "in part",
    f"MNIST: not with batches of 5, yes in the authors' setting. {_FILES}",
    (*_SKEWED, *_AUTHORS),
)
_PERSONAL = Row(
    "H.1, eqs. 45 to 47",
    "two samplers for a personalised objective",
    "built",
    "Devices keep their personal models; the selector draws for both parts of the gradient. The client has "
    "one φ, chosen here: the loss of β, and its distance from w. The paper's φ is any.",
    (),
    ("personalised-osmd",),
    ("personal-mu=1", "personal-holdout=0.5"),
)
_PERSONAL_CLAIM = Row(
    "H.1",
    "two samplers have at most one sampler's variance",
    "in part",
    "Only with as many draws for each part; the paper argues this and does not measure it.",
    ("osmd-personalised",),
)
_PHYSICAL = Row(
    "H.2",
    "sampling among the active clients only",
    "built",
    "p is rescaled over the available clients, in draws and weights. So is λ; the paper says nothing of λ.",
    (),
    ("adaptive-osmd",),
)
_BASELINES = (
    Row(
        "Baselines",
        "uniform sampling and the optimal p",
        "built",
        "`optimal` has every client train in every round, to learn all norms.",
        (),
        ("uniform", "optimal"),
    ),
    Row(
        "Baselines",
        "MABS, VRB and Avare",
        "built",
        "Each follows its own paper, with weights λ.",
        (),
        ("mabs", "vrb", "avare"),
    ),
    Row(
        "Baseline",
        "p in proportion to Lipschitz constants",
        "built",
        "The constants come from a file; a client that is not in it has their median.",
        (),
        ("lipschitz-is",),
        ("client-settings=FILE",),
    ),
    Row(
        "Baseline",
        "draws in proportion to data",
        "built",
        "The paper does not compare with it; it is strong, so section G's experiments have it.",
        (),
        ("md",),
    ),
)

FIRST = Paper(
    "OSMD, first version",
    _TITLE,
    (
        Row(
            "Algorithm 1",
            "the OSMD sampler",
            "built",
            "The rate is that of eq. 11.",
            (),
            ("osmd:rates=v1",),
        ),
        Row(
            "Algorithm 2, Proposition 1",
            "projection onto p ≥ α/M",
            "built",
            "The floor set grows until it is stable, instead of sorting; the result is the same.",
            (),
            ("osmd:rates=v1,alpha=0.4",),
        ),
        Row(
            "Algorithm 3",
            "mini-batch SGD with the OSMD sampler",
            "built",
            "With one local step; a run draws mini-batches without replacement (the paper: i.i.d.), section "
            "F with.",
            (),
            ("osmd:rates=v1",),
            ("local-steps=1",),
        ),
        Row(
            "Algorithm 4",
            "Adaptive-OSMD, experts of many rates",
            "built",
            "The default γ is scale-free; `gamma=printed` is the paper's.",
            (),
            ("adaptive-osmd:rates=v1,gamma=printed,ask-norms=true",),
        ),
        Row(
            "Algorithm 5",
            "Adaptive-OSMD with the doubling trick",
            "built",
            "The largest of all clients (line 13) cannot be observed: it is the largest of the last block. "
            "Line 3's query before training changes nothing: the first block has one round and makes no "
            "step.",
            (),
            ("adaptive-doubling-osmd:rates=v1,gamma=printed",),
        ),
        Row(
            "Algorithm 6, Proposition 2",
            "draws without replacement",
            "built",
            _DISTINCT,
            (),
            ("adaptive-osmd:rates=v1,replacement=false",),
        ),
        Row(
            "Eqs. 2 and 3",
            "the estimate and its variance",
            "built",
            "Every unbiased selector weights updates like this.",
            (),
            ("osmd:rates=v1",),
        ),
        Row(
            "Eqs. 4 and 8, Definition 2.1",
            "loss, dynamic regret and total variation",
            "built",
            "The experiments of section F measure them.",
            ("osmd-f1", "osmd-f6"),
        ),
        Row(
            "Eq. 5",
            "bound for strongly convex objectives",
            "reached",
            "It holds, but both sides are huge: the first of its step sizes are far too long.",
            ("osmd-gradient",),
        ),
        Row(
            "Eqs. 6 and 7",
            "estimates of the loss and its gradient",
            "built",
            "They count a client as often as it was drawn.",
            (),
            ("adaptive-osmd:rates=v1",),
        ),
        Row("Eq. 9, Theorem 1", "regret bound with projection error", "reached", _BOUND, ("osmd-bounds",)),
        Row(
            "Eq. 10, Corollary 1",
            "rate and bound for any comparator",
            "in part",
            "The rate needs the ā of future rounds, so eq. 11 is used; the bound is part of Theorem 3's.",
            ("osmd-bounds",),
        ),
        Row(
            "Section 3 (ζ0, ζ1, ζ2)",
            "heterogeneity of three kinds of sampling",
            "reached",
            "On gradient descent's path; the best fixed p ≥ α/M has a hundredth to a sixteenth of uniform's.",
            ("osmd-bounds",),
        ),
        Row(
            "Theorem 2 (R0, R1, R2)",
            "convergence of mini-batch SGD",
            "in part",
            f"{_SLOW}; R1's is larger than R0's, since the batches' noise dominates. R2 is not computed.",
            ("osmd-gradient",),
        ),
        Row(
            "Section 3, A.2 (σ = 0)",
            "with full gradients R1 is below R0",
            "reached",
            "R1's bound is a fraction of R0's. It also holds for uniform sampling, whose gradients "
            "are as small.",
            ("osmd-gradient",),
        ),
        Row(
            "Eq. 11",
            "rate for the best p of each round",
            "built",
            "The total variation is the setting `variation`; 0 by default.",
            (),
            ("osmd:rates=v1,variation=10",),
        ),
        Row(
            "Eq. 12, Corollary 2",
            "regret bound with this rate",
            "built",
            "The first term of Theorem 3's bound, which is measured, is 3/2 of it.",
            ("osmd-bounds",),
        ),
        Row(
            "Appendix C.3",
            "query of all norms before training",
            "built",
            "Without it, ā is the largest observed; λ² stands where λ is printed.",
            (),
            ("adaptive-osmd:rates=v1,ask-norms=true",),
        ),
        Row(
            "Eqs. 13 and 14",
            "rates and number of the experts",
            "built",
            "A multiplier of the rates is a setting.",
            (),
            ("adaptive-osmd:rates=v1,learning-rate-multiplier=100",),
        ),
        Row("Theorem 3", "regret bound of Adaptive-OSMD", "reached", _BOUND, ("osmd-bounds",)),
        Row(
            "Eqs. 15 and 16",
            "rates and number of a block's experts",
            "built",
            "ā of a block is the largest of the block before, or of its last round.",
            (),
            ("adaptive-doubling-osmd:rates=v1,largest-of=round",),
        ),
        Row(
            "Appendix C.4",
            "warm start of a block",
            "built",
            "It is the default; the other setting starts from the uniform distribution.",
            (),
            ("adaptive-doubling-osmd:rates=v1,warm-start=false",),
        ),
        Row("Theorem 4", "regret bound of the doubling trick", "reached", _BOUND, ("osmd-bounds",)),
        Row("Corollary 3", "regret bound with negative entropy", "reached", _BOUND, ("osmd-bounds",)),
        Row("Proposition 3", "regret bound without projection error", "reached", _BOUND, ("osmd-bounds",)),
        *_BASELINES,
        _FIGURE_1,
        _FIGURE_2,
        _FIGURE_3,
        _REPLACEMENT,
        _LIPSCHITZ,
        Row("Figure 6", "growth of ā and its squares", "reached", "ā falls to 0.", ("osmd-f6",)),
        Row("Figure 7", "total variation of the best p", "reached", "It grows with t.", ("osmd-f6",)),
        Row("Figure 8", "dynamic regret over the rounds", "reached", "It converges.", ("osmd-f6",)),
        _SIZES,
        _REAL,
        Row(
            "Figure 11",
            "logistic regression, balanced sizes",
            "in part",
            f"On MNIST all but Avare are alike, as claimed. {_FILES}",
            _BALANCED,
        ),
        _PERSONAL,
        _PERSONAL_CLAIM,
        _PHYSICAL,
    ),
)

LATER = Paper(
    "OSMD, later version",
    f"{_TITLE} (arXiv, the later version)",
    (
        Row(
            "Algorithm 1", "the OSMD sampler", "built", "The rate is that of eq. 20.", (), ("osmd:rates=v2",)
        ),
        Row(
            "Algorithm 2, Proposition 12",
            "projection onto p ≥ α/M",
            "built",
            "As in the first version.",
            (),
            ("osmd:rates=v2,alpha=0.4",),
        ),
        Row(
            "Algorithm 3",
            "mini-batch SGD with the OSMD sampler",
            "built",
            "With one local step; a run draws mini-batches without replacement (the paper: i.i.d.), section "
            "F with; a run ends with the last model, not with one of a random round.",
            (),
            ("osmd:rates=v2",),
            ("local-steps=1",),
        ),
        Row(
            "Algorithm 4",
            "FedAvg with the OSMD sampler",
            "built",
            "Feedback is the length of the update (line 14: divided by B), which cancels but for a_max and "
            "γ printed. A run goes through a client's samples in random order (line 9: draws each) and ends "
            "with the last model.",
            ("osmd-fedavg",),
            ("osmd:rates=v2",),
            ("local-steps=5", "batch-size=1"),
        ),
        Row(
            "Algorithm 5",
            "Adaptive-OSMD, experts of many rates",
            "built",
            "The default γ is scale-free; `gamma=printed` is the paper's.",
            (),
            ("adaptive-osmd:rates=v2,gamma=printed,ask-norms=true",),
        ),
        Row(
            "Algorithm 6",
            "doubling trick with a fixed A_max",
            "built",
            "A_max is the setting `a-max`; without it, the largest a of the last block.",
            (),
            ("adaptive-doubling-osmd:rates=v2,gamma=printed,a-max=1",),
        ),
        Row(
            "Algorithm 7, Proposition 11",
            "draws without replacement",
            "built",
            _DISTINCT,
            (),
            ("adaptive-osmd:rates=v2,replacement=false",),
        ),
        Row(
            "Eqs. 2, 3 and 12",
            "the estimate and its variance",
            "built",
            "Every unbiased selector weights updates like this.",
            (),
            ("osmd:rates=v2",),
        ),
        Row(
            "Section 3.1, eq. 18",
            "variance reduction loss, and dynamic regret (section 5)",
            "built",
            "As in the first version.",
            ("osmd-f1",),
        ),
        Row(
            "Eq. 5",
            "bound for strongly convex objectives",
            "reached",
            "It holds, but both sides are huge: the first of its step sizes are far too long.",
            ("osmd-gradient",),
        ),
        Row(
            "Eqs. 6 and 7",
            "estimates of the loss and its gradient",
            "built",
            "They count a client as often as it was drawn.",
            (),
            ("adaptive-osmd:rates=v2",),
        ),
        Row(
            "Section 6",
            "query of all norms before training, which estimates A_max",
            "built",
            "Without it, A_max is the largest a observed.",
            (),
            ("adaptive-osmd:rates=v2,ask-norms=true",),
        ),
        Row(
            "A.1",
            "warm start of a block",
            "built",
            "It is the default; the other setting starts from the uniform distribution.",
            (),
            ("adaptive-doubling-osmd:rates=v2,warm-start=false",),
        ),
        Row(
            "Eqs. 8 to 11 (ζ_unif, V, ζ_fix, ζ_min)",
            "heterogeneity of several kinds of sampling",
            "in part",
            "On the path of gradient descent; the dynamic ζ_T with a budget of variation is not computed.",
            ("osmd-bounds",),
        ),
        Row(
            "R_unif, section 4",
            "rates of uniform sampling",
            "reached",
            "The later version cites these rates and does not prove them. Measured are the bounds in the "
            "proofs of Theorems 2 and 5 with the uniform q: they hold, far above the gradient.",
            ("osmd-gradient", "osmd-fedavg"),
        ),
        Row(
            "Eqs. 13 and 16",
            "rates for gradients of at most G",
            "built",
            "They are eq. 20 with A_max = G²/M²; for B local steps `a-max` is B²G²/M², B times the "
            "paper's, as is the feedback.",
            (),
            ("osmd:rates=v2,a-max=0.01,variation=10",),
        ),
        Row(
            "Theorem 4 (with ζ_T)",
            "convergence of mini-batch SGD",
            "in part",
            f"{_LOOSE} For β = 0, where ζ_T is ζ_fix. The regret in it is twice the proof's (see eq. 21).",
            ("osmd-gradient",),
        ),
        Row(
            "Theorem 5",
            "convergence of FedAvg",
            "in part",
            "With the constants of its proof it holds, far above the gradient. For β = 0, "
            "where ζ_T is ζ_fix. The regret in it is twice the proof's (see eq. 21).",
            ("osmd-fedavg",),
        ),
        Row("Theorem 6", "regret bound of OSMD", "reached", _BOUND, ("osmd-bounds",)),
        Row(
            "Eqs. 20 and 21, Corollary 7",
            "rate, and bound for this rate",
            "built",
            "Eq. 21 prints half of what Theorem 6 gives for this rate; the bound is part of Theorem 8's.",
            ("osmd-bounds",),
            ("osmd:rates=v2,variation=10",),
        ),
        Row(
            "Eqs. 22 and 23",
            "rates and number of the experts",
            "built",
            "They are the default.",
            (),
            ("adaptive-osmd:rates=v2",),
        ),
        Row("Theorem 8", "regret bound of Adaptive-OSMD", "reached", _BOUND, ("osmd-bounds",)),
        Row(
            "Theorem 9",
            "convergence with Adaptive-OSMD",
            "in part",
            "With the constants of the proofs of Theorems 2 and 5 it holds, far above the gradient. "
            "For β = 0.",
            ("osmd-gradient", "osmd-fedavg"),
        ),
        Row(
            "Eqs. 27 and 28",
            "rates and number of a block's experts",
            "built",
            "They are the default.",
            (),
            ("adaptive-doubling-osmd:rates=v2",),
        ),
        Row("Theorem 10", "regret bound of the doubling trick", "reached", _BOUND, ("osmd-bounds",)),
        Row("Proposition 13", "regret bound without projection error", "reached", _BOUND, ("osmd-bounds",)),
        *_BASELINES,
        _FIGURE_1,
        _FIGURE_2,
        _FIGURE_3,
        replace(_LIPSCHITZ, item="Figure 4"),
        replace(_SIZES, item="Figure 5"),
        replace(_REAL, item="Figure 6"),
        replace(_REPLACEMENT, item="Figure 7"),
        Row(
            "Figure 8",
            "SCAFFOLD with uniform sampling and OSMD",
            "reached",
            "OSMD is marginally better at σ = 10, as claimed.",
            ("osmd-scaffold",),
        ),
        Row(
            "Appendix E",
            "OSMD with SCAFFOLD",
            "built",
            "The server keeps the clients' control variates; the feedback is the change of the local model.",
            (),
            ("osmd", "adaptive-osmd"),
            ("variates=scaffold", "learning-rate=0.1"),
        ),
        replace(_PERSONAL, item="D.1"),
        replace(_PERSONAL_CLAIM, item="D.1"),
        replace(_PHYSICAL, item="D.2"),
    ),
)
