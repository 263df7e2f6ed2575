"""The algorithms, figures, tables and bounds of the DELTA paper, each with its status and what runs it."""

from benchmarks.experiments.coverage.row import Paper, Row

_ORDER = "The paper gives only the order of the rate, without constants."
_NO_GAIN = (
    "With an MLP on MNIST, no unbiased selector is more accurate than FedAvg beyond the spread, nor does "
    "PracDELTA need fewer rounds."
)
_NO_DATA = "The paper's own data could not be had here, so the experiments with them have no results."

PAPER = Paper(
    "DELTA",
    "Wang, Guo, Lin, Tang, *DELTA: Diverse Client Sampling for Fasting Federated Learning*",
    (
        Row(
            "Algorithm 1, FedDELTA",
            "sampling by diversity and local variance",
            "built",
            "Every available client trains in every round, so that the updates of all clients are known.",
            (),
            ("delta",),
        ),
        Row(
            "Algorithm 1, FedPracDELTA",
            "sampling by the diversity and local variance of past participants",
            "built",
            "The probabilities have a floor. By default, diversities are distances from the weighted mean "
            "of the updates; `diversity-mean=plain` takes the paper's plain mean.",
            (),
            ("prac-delta:diversity-mean=plain",),
        ),
        Row(
            "Algorithm 2, FedIS",
            "sampling by norms of the updates",
            "built",
            "Every available client trains in every round, so that the norms of all clients are known.",
            (),
            ("fed-is",),
        ),
        Row(
            "Algorithm 2, FedPracIS",
            "sampling by the norms of past participants' updates",
            "built",
            "The probabilities have a floor. The paper assumes one, but does not give its value.",
            (),
            ("prac-is",),
        ),
        Row(
            "Baseline, cluster-based IS",
            "importance sampling within k-means clusters of similar norms",
            "built",
            "A client's norm is that of its last participation. Clients that never participated form a "
            "cluster of their own.",
            (),
            ("cluster-is:num-clusters=2",),
        ),
        Row(
            "Baselines, FedAvg and Power-of-Choice",
            "draws in proportion to data; clients with the largest losses",
            "built",
            "The paper's FedAvg is `md`, which draws clients in proportion to their data. If all clients "
            "have the same amount of data, `uniform` is the same.",
            (),
            ("md", "uniform", "pow-d:num-candidates=6"),
        ),
        Row("Eq. 3, Theorem 3.1, Corollary D.2 (eq. 30)", "convergence of FedIS", "nothing to run", _ORDER),
        Row(
            "Eqs. 28 and 29, Theorem D.1",
            "bound of FedIS with its constants",
            "reached",
            "On quadratic losses the bound holds. At the end of the runs it is about two thousand times "
            "the least squared gradient.",
            ("delta-theorems", "delta-bounds"),
        ),
        Row(
            "Eqs. 39 to 41",
            "bounds of the variance in the proof of Theorem D.1",
            "reached",
            "For IS, the bounds of eqs. 39 and 40 hold in these runs. They are at least about nine times "
            "the variance V. Eq. 40 lacks a term for the noise of mini-batches (at least K² σ_L²), so it "
            "does not hold in general. Eq. 41 inserts eq. 40 into the bound of one step. Eqs. 39 and 40 "
            "print the norm of a sum where the sum of the norms is meant.",
            ("delta-theorems",),
        ),
        Row(
            "Eq. 4 (Φ)",
            "variance term of FedIS' bound",
            "built",
            "Φ is computed as in eq. 29, which has σ_L² + 4Kσ_G² where eq. 4 prints the square of this sum.",
            ("delta-bounds",),
        ),
        Row(
            "Eq. 5, Corollary F.1",
            "optimal p of IS",
            "built",
            "If clients have unequal weights λ, each norm is multiplied by λ, as the paper states after "
            "eq. 34.",
            (),
            ("fed-is",),
        ),
        Row(
            "Eqs. 5 and 13, measured",
            "variance of the update",
            "not reached",
            "The paper claims that DELTA reduces the variance at least as much as IS. Here IS has less "
            "variance than uniform sampling, and DELTA never has less than IS. If the updates have much "
            "in common, DELTA has more variance than uniform sampling.",
            ("delta-variance",),
        ),
        Row(
            "Eqs. 6 to 8 (χ)",
            "gap between surrogate and objective",
            "built",
            "At a given model, χ² is the variance of the aggregate, which the experiments compute "
            "exactly. Eqs. 6, 8 and 44 print + χ², but by Lemma C.2 (eq. 21) the sign is -. With - χ², "
            "eq. 62 alone bounds the gradient, and the factor 2 of Theorem 3.5 is not needed; "
            "`delta_bound` keeps this factor.",
            ("delta-variance", "delta-bounds"),
        ),
        Row(
            "Eq. 9, Theorem 3.5 and E.2",
            "convergence of FedDELTA",
            "reached",
            "With replacement, the bound holds on quadratic losses, and is about as large for IS as for "
            "DELTA. DELTA's least squared gradient is on average a fifth below that of IS; its lead over "
            "FedAvg is within the spread. Without replacement (section E.2.2), only Φ̃ of the bound is "
            "computed (eq. 10).",
            ("delta-theorems",),
        ),
        Row(
            "Eqs. 10 and 11 (Φ̃)",
            "variance term of FedDELTA's bound",
            "built",
            "Φ̃ is computed on given updates, for draws with and without replacement.",
            ("delta-bounds",),
        ),
        Row(
            "Eq. 13, Corollary 3.7",
            "optimal p of DELTA",
            "built",
            "α1 and α2 are settings. If the settings L, η_L and η are given, α1 and α2 are computed from "
            "these and K.",
            (),
            ("delta:alpha-1=0.5,alpha-2=0.5",),
        ),
        Row("Eq. 14, Corollary 3.9", "rate of FedDELTA", "nothing to run", _ORDER),
        Row(
            "Section 3.4 (Φ̃ uniform over DELTA)",
            "gain of DELTA in the bound",
            "reached",
            "Φ̃ of uniform sampling is 1.02 to 2.0 times that of DELTA, but the variance of the aggregate "
            "can be larger with DELTA. The printed formula has α1 and α2 swapped.",
            ("delta-bounds",),
        ),
        Row(
            "Eq. 15",
            "practical p of IS",
            "built",
            "After a round, the participants' total probability is divided anew among them. Each score is "
            "multiplied by the client's weight λ, and at the start p = λ. The paper has no λ, and starts "
            "at 1/m.",
            (),
            ("prac-is",),
        ),
        Row(
            "Eq. 15, p ≥ γ",
            "what happens without a floor",
            "reached",
            "The paper assumes a floor. In the experiment, the largest weight is about ten million "
            "without a floor, and 10 with the floor 0.1.",
            ("delta-floor",),
        ),
        Row(
            "Eq. 16",
            "practical p of DELTA",
            "built",
            "The local variance has the divisor n - 1 where the paper has the number n of mini-batches. "
            "Diversities are divided by the number of local steps; the paper prints no such division.",
            (),
            ("prac-delta",),
        ),
        Row(
            "Eqs. 76 to 78",
            "variance at the p of IS, and its gain over uniform",
            "built",
            "Eq. 76 prints the squared norm of the mean where the squared mean of the norms is meant. "
            "Eq. 77 is the same bound as eq. 39.",
            ("delta-bounds", "delta-theorems"),
        ),
        Row(
            "Eqs. 17 and 18, Corollaries 4.1 and 4.2",
            "rates of the practical forms",
            "nothing to run",
            _ORDER,
        ),
        Row(
            "Lemma C.1",
            "unbiased with and without replacement",
            "in part",
            "For draws without replacement, the printed weights are biased. The code uses weights that "
            "are exactly unbiased.",
            (),
            ("prac-delta:replacement=false", "prac-delta:design=systematic"),
        ),
        Row("Table 1", "rates of convergence of many methods", "nothing to run", _ORDER),
        Row(
            "Figure 1",
            "which clients each method selects",
            "nothing to run",
            "The figure is an illustration.",
        ),
        Row(
            "Figure 2",
            "logistic regression on MNIST, 10 of 200",
            "not reached",
            "With full information, DELTA is not ahead of FedAvg or IS beyond the spread, neither after 120 "
            "of 200 rounds (.4 points over FedAvg, 95 % interval -.3 to 1.1) nor at the end. PracDELTA is "
            "not ahead of FedAvg beyond the spread.",
            ("delta-mnist", "delta-mnist-full"),
        ),
        Row(
            "Figure 3",
            "toy: two of three clients",
            "in part",
            "The plain means of the pairs that the paper assumes have the printed distances from the mean "
            "of all clients. With unbiased weights, DELTA's estimate has the largest error of the three.",
            ("delta-toy",),
        ),
        Row(
            "Figure 4",
            "regression under gradient noise, A = 10",
            "not reached",
            "The paper does not give the start. At a start in the optimum (which cannot show a speed) and "
            "at a far one (with ν = 20), DELTA is not ahead of IS, Power-of-Choice or FedAvg beyond the "
            "spread. The error of DELTA's update is larger than that of FedAvg with distinct clients.",
            ("delta-regression", "delta-regression-far"),
        ),
        Row(
            "Table 2",
            "accuracy, rounds and time, four data sets",
            "not reached",
            f"{_NO_GAIN} With the paper's network for Fashion-MNIST, 20 of 300 clients and 500 rounds, "
            "FedAvg reaches 90.3 % on MNIST, PracIS and PracDELTA 90.2 %. The runs on MNIST do not "
            f"measure times. {_NO_DATA}",
            (
                "delta-table-3",
                "delta-table-3-mnist-cnn",
                "delta-table-3-fashion-mnist",
                "delta-table-3-cifar10",
                "delta-table-3-femnist",
                "delta-table-3-celeba",
            ),
        ),
        Row(
            "Table 3",
            "momentum and proximal term on FEMNIST",
            "not reached",
            f"{_NO_GAIN} {_NO_DATA}",
            ("delta-table-3", "delta-table-3-femnist"),
        ),
        Row(
            "Sections 5 and H.3",
            "DELTA and IS with momentum",
            "built",
            "The server applies the momentum. The paper does not say whether the server or the clients do.",
            (),
            ("prac-delta", "prac-is"),
            ("server-strategy=FedAvgM:server-momentum=0.9",),
        ),
        Row(
            "Sections 5 and H.3",
            "DELTA and IS with a proximal term",
            "built",
            "The clients add the proximal term to their loss. It can be combined with any server strategy.",
            (),
            ("prac-delta", "prac-is"),
            ("proximal-mu=0.01",),
        ),
        Row(
            "Sections 5 and H.3",
            "DELTA and IS with FedVARP",
            "built",
            "With `fedvarp-mean`, the step is the mean of the stored updates of all clients, as in H.3, "
            "weighted by data sizes. With `fedvarp`, the selector's weights keep it unbiased; "
            "`delta-table-5` measures this form. The selector computes its scores from each update minus "
            "the client's remembered update.",
            (),
            ("prac-delta", "prac-is"),
            ("variates=fedvarp", "variates=fedvarp-mean"),
        ),
        Row(
            "Section H.3",
            "DELTA and IS with Adagrad",
            "built",
            "The server uses Flower's strategy FedAdagrad.",
            (),
            ("prac-delta", "prac-is"),
            ("server-strategy=FedAdagrad:eta=0.01",),
        ),
        Row(
            "Section H.3",
            "DELTA and IS with Adam",
            "built",
            "The server uses Flower's strategy FedAdam.",
            (),
            ("prac-delta", "prac-is"),
            ("server-strategy=FedAdam:eta=0.01",),
        ),
        Row(
            "Section H.3",
            "DELTA and IS with FedMIME",
            "missing",
            "The paper's text says that Table 4 has FedMIME, but the table has momentum in its place.",
        ),
        Row(
            "Figure 5",
            "the toy, one method a panel",
            "in part",
            "The experiment and its result are those of Figure 3.",
            ("delta-toy",),
        ),
        Row(
            "Figure 6",
            "norms of the selected clients' gradients",
            "reached",
            "On MNIST, the clients that cluster-based IS selects have smaller gradients on average than "
            "those that practical IS selects.",
            ("delta-mnist",),
        ),
        Row(
            "Figure 7",
            "cluster-based IS without the small cluster",
            "not reached",
            "On MNIST the result is the opposite of the paper's: the accuracy is 87.1 % without the "
            "cluster of small norms and 88.7 % with it. Without this cluster, the aggregate is the mean "
            "over the other clients. The losses of the figure are not shown.",
            ("delta-mnist-clusters",),
        ),
        Row(
            "Eqs. 85 to 89, appendix G",
            "gradients that change little between rounds",
            "in part",
            "U is the largest ratio of a client's norm to its norm when it was last selected; Ũ is the "
            'same for diversities. The paper only says that these ratios remain "limited". In the '
            "regression with the practical forms, U is on average 9 in the first and 14 in the last "
            "rounds, and Ũ is 8; the largest values of all rounds are about 200 for U and 900 for Ũ. The "
            "bounds of V and Φ̃ at earlier p (eqs. 85, 87 and 89) are not computed.",
            ("delta-extremes",),
        ),
        Row(
            "Theorems E.2, E.5, Corollaries E.4, E.7, Proposition C.4",
            "restatements, and weaker assumptions",
            "nothing to run",
            "These repeat the bounds of other rows, or their orders.",
        ),
        Row("Figure 8", "the flow of the proofs", "nothing to run", "The figure is an illustration."),
        Row(
            "Figure 9",
            "largest and smallest norm over rounds",
            "in part",
            "Measured in the regression, for practical IS and for IS with full information; not on MNIST "
            "and Fashion-MNIST. The norms lie between about 0.01 and 19; the paper has 0.5 to 8 on its "
            "data.",
            ("delta-extremes",),
        ),
        Row(
            "Figure 10",
            "largest and smallest diversity over rounds",
            "in part",
            "Measured in the regression, for practical DELTA and for DELTA with full information; not on "
            "MNIST and Fashion-MNIST. The diversities lie between about 0.01 and 18.",
            ("delta-extremes",),
        ),
        Row(
            "Figure 11",
            "regression, other A and b",
            "not reached",
            "For A = 10 and b = 1, the result is that of Figure 4. For A = 8 and b = 2, at a start far "
            "from the optimum, DELTA is not ahead of IS, Power-of-Choice or FedAvg beyond the spread.",
            ("delta-regression", "delta-regression-far", "delta-regression-8-2"),
        ),
        Row(
            "Figure 12",
            "regression with small noise",
            "not reached",
            "The paper does not give its noise levels; ours are ν = 1 and 5. At a start far from the "
            "optimum, all methods are equally fast within the spread.",
            ("delta-regression-far",),
        ),
        Row(
            "Figure 13",
            "regression, 10 of 200 clients",
            "not reached",
            "Each client has 100 samples; the paper has 1000. DELTA is not ahead of IS, Power-of-Choice "
            "or FedAvg beyond the spread.",
            ("delta-regression-200",),
        ),
        Row(
            "Figure 14(a)",
            "split data: 10 % of the clients own 90 %",
            "not reached",
            "On MNIST with logistic regression, DELTA is not ahead of FedAvg beyond the spread, and is "
            "behind Power-of-Choice. The accuracy depends on how many of the nine large clients are "
            f"selected, not on the scores. {_NO_DATA}",
            ("delta-split", "delta-split-fashion-mnist"),
        ),
        Row(
            "Figure 14(b)",
            "accuracy over the rounds on FEMNIST",
            "in part",
            "The experiment can be run. The data could not be had here, so there is no result.",
            ("delta-femnist",),
        ),
        Row(
            "Figure 15",
            "number of sampled clients",
            "in part",
            "On MNIST with 5, 10 (`delta-table-3`) and 20 of 150 clients, PracDELTA needs fewer rounds "
            "with more clients on average over five seeds, and so does FedAvg. The 95 % interval of "
            f"PracDELTA's gain from 5 to 20 clients includes no gain. {_NO_DATA}",
            ("delta-sampled", "delta-sampled-femnist"),
        ),
        Row(
            "Table 4",
            "momentum and proximal term on CIFAR-10",
            "not reached",
            f"{_NO_GAIN} {_NO_DATA}",
            ("delta-table-3", "delta-table-3-cifar10"),
        ),
        Row(
            "Table 5",
            "FedVARP on Fashion-MNIST",
            "not reached",
            "With FedVARP and an MLP on MNIST, all selectors are equally accurate within the spread; "
            f"FedVARP adds 1.0 to 1.6 points to each. {_NO_DATA}",
            ("delta-table-5", "delta-table-5-fashion-mnist"),
        ),
        Row(
            "Table 6",
            "Adagrad and Adam on FEMNIST",
            "not reached",
            f"{_NO_GAIN} {_NO_DATA}",
            ("delta-table-6", "delta-table-6-femnist"),
        ),
        Row(
            "Table 7",
            "Adagrad and Adam on CelebA",
            "not reached",
            f"{_NO_GAIN} {_NO_DATA}",
            ("delta-table-6", "delta-table-6-celeba"),
        ),
        Row(
            "Table 8",
            "Table 2 with common thresholds",
            "not reached",
            f"{_NO_GAIN} The thresholds are ours. {_NO_DATA}",
            (
                "delta-table-3",
                "delta-table-3-cifar10",
                "delta-table-3-celeba",
            ),
        ),
        Row(
            "Table 9",
            "momentum on CIFAR-10, with three heterogeneities α",
            "not reached",
            f"{_NO_GAIN} {_NO_DATA}",
            ("delta-table-9", "delta-table-3", "delta-table-9-cifar10"),
        ),
    ),
)
