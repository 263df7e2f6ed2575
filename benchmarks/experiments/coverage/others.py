"""The selectors and experiments that are not from the papers, each with its status and what runs it."""

from benchmarks.experiments.coverage.row import Paper, Row

OTHERS = Paper(
    "Not from the papers",
    "What this project adds",
    (
        Row(
            "`forecast`",
            "forecasts of each update's norm",
            "built",
            "`forecast` is the default selector.",
            (),
            ("forecast",),
        ),
        Row(
            "`forecast`, measured",
            "streams that it was not tuned on",
            "reached",
            "The claims on [its page](results/forecast.md) say on which streams its regret is at most 1.1 "
            "times that of the best baseline.",
            ("forecast-streams",),
        ),
        Row(
            "`forecast`, measured",
            "other M, K, T and spreads",
            "built",
            "In these settings `forecast` was weak, or had not been measured before.",
            ("forecast-settings",),
        ),
        Row(
            "the guard",
            "three liars of twenty",
            "built",
            "Nine selectors run with and without the guard, on clients with alike data and with unlike data.",
            ("liars-alike", "liars-unlike"),
        ),
        Row(
            "noise on reports",
            "regret and losses with clipped and noisy reports",
            "built",
            "With ε ≤ 1, the selectors that learn from norms have more regret than uniform sampling.",
            ("report-noise",),
        ),
        Row(
            "`timed-md`",
            "`md` with durations",
            "built",
            "The tests compare its probabilities with a grid search.",
            (),
            ("timed-md",),
        ),
        Row(
            "`timed-forecast`",
            "`forecast` with durations",
            "built",
            "The experiments compare its time to an accuracy with that of Oort, FedBuff and over-selection.",
            (
                "time-lognormal",
                "time-lognormal-hard",
                "time-lognormal-easy",
                "time-lognormal-half",
                "time-devices",
                "time-devices-hard",
                "time-devices-easy",
                "time-devices-half",
                "time-mnist",
            ),
            ("timed-forecast",),
        ),
        Row(
            "`oort`",
            "Oort, Algorithm 1 (OSDI 2021)",
            "built",
            "It is a baseline, and biased on purpose.",
            (),
            ("oort",),
        ),
        Row(
            "`tifl`",
            "TiFL, Table 1 (HPDC 2020)",
            "built",
            "It is a baseline, and biased on purpose. The adaptive policy, which needs the accuracy of "
            "each tier, is not there.",
            (),
            ("tifl",),
        ),
        Row(
            "`full`",
            "all available clients",
            "built",
            "Its aggregate has no variance from sampling, so no selector can do better in this respect.",
            (),
            ("full",),
        ),
    ),
)
