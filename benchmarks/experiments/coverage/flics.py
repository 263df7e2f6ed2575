"""The algorithms, figures, tables and bounds of the FLICS paper, each with its status and what runs it."""

from benchmarks.experiments.coverage.row import Paper, Row

_GROUPS = "partition=groups:3"
_ADAM = "server-strategy=FedAdam:eta=0.05"
_IN_PYTHON = "The code is in `simulation.availability`."
_TABLE = ("flics-synthetic", "flics-mnist", "flics-emnist")

PAPER = Paper(
    "FLICS",
    "Ribero, Vikalo, de Veciana, *Federated Learning at Scale: Addressing Client Intermittency and Resource "
    "Constraints*",
    (
        Row(
            "Algorithm 1, FLICS-AVG",
            "group rates of least variance",
            "built",
            "The paper prints three errors: lines 12 and 14 scale the updates twice, line 14 also divides by "
            "the number of clients, and line 7 divides by t - 1, which is 0 at t = 1. The code scales once, "
            "by p/ŝ(t), and divides by t in line 7. Here t counts only rounds with participants, which "
            "changes all weights by one factor.",
            (),
            ("flics",),
            (_GROUPS,),
        ),
        Row(
            "Algorithm 1, FLICS-ADAM",
            "the same, with Adam on the server",
            "built",
            "Adam is Flower's FedAdam.",
            (),
            ("flics",),
            (_GROUPS, _ADAM),
        ),
        Row(
            "Algorithm 1, line 5, Remark 4",
            "the client's own coin, private groups",
            "built",
            "The server estimates the number of clients of each group by randomised response. `cohort up` "
            "and `cohort simulate --engine ray` run it. The default engine of `cohort simulate` refuses it, "
            "since it trains all clients as one batch, without messages.",
            (),
            ("flics-private:group-shares=1/1/1",),
            (_GROUPS,),
        ),
        Row(
            "Remark 4, numbers drawn by the server",
            "a given number of clients of each group",
            "built",
            "The number of clients of a group is the group's rate, rounded up or down at random. A client's "
            "probability is the same as with coins.",
            (),
            ("flics:design=numbers",),
            (_GROUPS,),
        ),
        Row(
            "Algorithm 1, line 1 (β)",
            "first estimate of the participation",
            "built",
            "In eq. 6 β has the factor t - 1, which is 0 at t = 1, so β has no effect. Here `beta` is added "
            "to the number of participants of each group.",
            (),
            ("flics:beta=0.1",),
            (_GROUPS,),
        ),
        Row(
            "Section II (p)",
            "weights of the groups",
            "built",
            "By default, a group's weight is its share of the data.",
            (),
            ("flics:group-shares=2/1/1",),
            (_GROUPS,),
        ),
        Row(
            "Eqs. 2 and 3, K(t)",
            "the number of clients changes",
            "built",
            "The budget is a number or a schedule; in Python any function of the round.",
            (),
            ("flics",),
            (_GROUPS, "budget=5@1/3@10"),
        ),
        Row(
            "Eqs. 5 and 6 (Var)",
            "problem of each round",
            "built",
            "The problem is solved in closed form. If a cost budget or the energy budget of all clients "
            "(the paper has neither) is a tighter limit than K, cvxpy solves it.",
            (),
            ("flics",),
            (_GROUPS,),
        ),
        Row(
            "Baselines, FedAvg and Naive",
            "uniform sampling and fixed quotas",
            "built",
            "Naive draws at most its quota from each group.",
            (),
            ("uniform:replacement=false", "naive-group"),
            (_GROUPS,),
        ),
        Row(
            "Baseline, FedAdam",
            "uniform sampling, Adam on the server",
            "built",
            "Adam is Flower's FedAdam.",
            (),
            ("uniform:replacement=false",),
            (_GROUPS, _ADAM),
        ),
        Row(
            "Section IV-B, uniform, Poisson and cyclic",
            "availability by random processes",
            "built",
            f"{_IN_PYTHON} Our copy of the paper lacks the parameters, so they are ours. In "
            "`flics-variance`, `flics-sigma` and `flics-bound`, uniform availability does not fill every "
            "quota of Naive, unlike in the paper; in `flics-synthetic` it does.",
            ("flics-synthetic", "flics-variance", "flics-sigma", "flics-bound"),
        ),
        Row(
            "Section IV-B, real-random and real-correlated",
            "availability from a record",
            "in part",
            f"{_IN_PYTHON} A synthetic record replaces that of 5,342 users, which could not be had. In "
            "real-correlated, three of the ten groups get the third of the recorded clients with the lowest "
            "availability, four groups the next third, and three groups the last.",
            ("flics-synthetic",),
        ),
        Row(
            "Eq. 4, Definition 3",
            "long-term participation of the groups",
            "built",
            "It can be computed from the fields `client_groups`, `clients` and `responded` of a history.",
            (),
            ("flics",),
            (_GROUPS,),
        ),
        Row(
            "Eq. 7",
            "the variance for independent coins",
            "built",
            "`flics-sigma` measures the main term Σ p²/ŝ, and `flics-bound` the whole, with covariances.",
            ("flics-sigma", "flics-bound"),
        ),
        Row(
            "Inequalities after eq. 7",
            "eq. 7 is Σ p²/ŝ, up to a factor 1 ± ε and a constant",
            "reached",
            "The inequalities hold if s/ŝ is within ε of 1, and s and ŝ are at most n. In the experiment "
            "they hold in nearly all rounds.",
            ("flics-bound",),
        ),
        Row(
            "Eq. 8 (OffVar)",
            "offline optimum in hindsight",
            "built",
            "The experiments solve it exactly, without r_min.",
            ("flics-variance",),
        ),
        Row(
            "Theorem 1 (C)",
            "bound of FLICS-AVG and its constant",
            "reached",
            "On quadratic losses the bound holds; at the end it is at least ten times the least squared "
            "gradient. The theorem prints no condition on the rates, and no assumption defines σ_G². "
            "Theorem 1 calls Σ a correlation, Lemma 6 a covariance; here it is the covariance. Assumption 4 "
            "prints G² as the bound of a norm, and means G.",
            ("flics-bound",),
        ),
        Row(
            "Corollary 1.1 (σ_T)",
            "rate, and the variance in it",
            "in part",
            "`flics-bound` uses the corollary's η_L and η, and computes σ_T with the covariances Σ; "
            "`flics-sigma` computes σ_T without Σ. The corollary gives a rate without constants.",
            ("flics-sigma", "flics-bound"),
        ),
        Row(
            "Theorem 2",
            "the variance approaches the offline optimum",
            "reached",
            "The variance at the mean rates approaches the optimum in every process. σ_T as in the proof "
            "needs β > 0, and for the trace it is still noisy after 4000 rounds.",
            ("flics-variance", "flics-sigma"),
        ),
        Row(
            "Lemma 4 (ε̂)",
            "the estimate is nearly unbiased",
            "reached",
            "The mean weight of a group is near its p, and far below the lemma's limit of ε̂ times p.",
            ("flics-bound",),
            ("flics",),
            (_GROUPS,),
        ),
        Row(
            "Remark 2",
            "groups of one client",
            "built",
            "Without groups, each client is a group of its own. By default such a group counts only for the "
            "rounds in which its client is available; with `lone_groups=groups` its missed rounds are made "
            "up for, as in the paper.",
            (),
            ("flics",),
        ),
        Row(
            "Remark 5",
            "cost of a round",
            "built",
            "`cohort bench selection --names flics` measures it.",
            (),
            ("flics",),
            (_GROUPS,),
        ),
        Row("Figure 1", "one round of messages", "nothing to run", "An illustration."),
        Row(
            "Figure 2",
            "accuracy over the rounds, Synthetic",
            "in part",
            "Claim: FLICS-AVG is faster than Naive in every process, uniform included. Here it needs more "
            "rounds than Naive in the uniform process and both traces, and fewer in the others, mostly "
            "within the spread.",
            ("flics-synthetic",),
        ),
        Row(
            "Figure 3",
            "accuracies of the groups, EMNIST",
            "in part",
            "The caption says EMNIST, the text Synthetic. Our figure shows MNIST, with cumulative curves "
            "instead of histograms. EMNIST's data could not be had here. On Synthetic, only the worst group "
            "is shown.",
            ("flics-mnist", "flics-emnist"),
        ),
        Row(
            "Table I, Synthetic",
            "best accuracy, five availabilities",
            "in part",
            "Where groups are unequally available, FLICS-AVG is above FedAvg, but by less than in the "
            "paper. With the cyclic process and the correlated trace, FLICS-AVG is level with Naive. "
            "FLICS-ADAM reaches its best accuracy sooner than FLICS-AVG, but this accuracy is not above "
            "FLICS-AVG's beyond the spread; in the paper it is, in four of five processes. The paper's text "
            "and table differ. The text says that both FLICS methods lead except in the correlated trace; in "
            "the table FLICS-AVG leads there, too. The text says that FedAvg always under-performs; in the "
            "table it is above Naive and FLICS-AVG in the random trace.",
            ("flics-synthetic",),
        ),
        Row(
            "Section IV-D, uniform",
            "Naive ahead of FLICS where quotas can be filled",
            "not reached",
            "The paper's Table I contradicts this claim: Naive 65.5, FLICS-AVG 66.0, FLICS-ADAM 67.6 on "
            "Synthetic, and 91.7, 93.3, 94.4 on EMNIST. Here Naive is level with FLICS-AVG, and on MNIST "
            "behind FLICS-ADAM.",
            ("flics-synthetic", "flics-mnist"),
        ),
        Row(
            "Table I, EMNIST",
            "best accuracy, five availabilities",
            "in part",
            "On MNIST FLICS-ADAM is best; with the cyclic process and the random trace its lead is within "
            "the spread. FLICS-AVG is not ahead of Naive. EMNIST's data could not be had here. A perceptron "
            "replaces the paper's convolutional network.",
            ("flics-mnist", "flics-emnist"),
        ),
        Row(
            "Table I, CIFAR-100",
            "ResNet-18 with group norm",
            "in part",
            "The experiment can be run, but its data could not be had here, so there is no result. The paper "
            "prints FLICS-ADAM in bold, but in its table FLICS-AVG is ahead in all columns. The parameters "
            "of the processes are ours: groups have 1 to 20 available clients on average (uniform: 4 to 20), "
            "in `flics-synthetic` 1 to 100 (uniform: 4 to 100).",
            ("flics-cifar100",),
        ),
        Row("Table II", "list of symbols", "nothing to run", "A list."),
        Row(
            "Section IV-D, fairness",
            "accuracy of the worst group",
            "in part",
            "Where groups are unequally available, FLICS' worst group is far above FedAvg's, except with the "
            "cyclic process on Synthetic. Unlike in the paper, FLICS-AVG is not clearly ahead of Naive. In "
            "the correlated trace on Synthetic FLICS-ADAM has 50 %, FedAdam 38 % (the paper: 38 and 30).",
            _TABLE,
        ),
        Row(
            "Section IV-D, resource constraints",
            "fewer rounds with the same budget a round",
            "in part",
            "The tables have the rounds to 95 % of FLICS-AVG's best accuracy. In the five processes of the "
            "paper FLICS-ADAM needs the fewest rounds; in the random trace FedAdam needs about as many. "
            "FLICS-AVG needs more rounds than Naive on MNIST, and on Synthetic in the uniform process and "
            "both traces. The paper says that FLICS converges within 200 rounds; by this measure it does. "
            "The paper refers to Figure 3 for this, but Figure 3 has no rounds.",
            _TABLE,
        ),
    ),
)
