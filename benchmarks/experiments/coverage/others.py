"""Selectors and experiments that are not from the papers."""

from benchmarks.experiments.coverage.row import Paper, Row

OTHERS = Paper(
    "Not from the papers",
    "What this project adds",
    (
        Row(
            "`forecast`",
            "forecasts of each update's norm",
            "built",
            "It is the default selector.",
            (),
            ("forecast",),
        ),
        Row(
            "`forecast`, measured",
            "streams that it was not tuned on",
            "reached",
            "The claims of [its page](results/forecast.md) say on which streams it is within 1.1 times "
            "the best baseline.",
            ("forecast-streams",),
        ),
        Row(
            "`forecast`, measured",
            "other M, K, T and spreads",
            "built",
            "The settings in which it was weak, or not measured before.",
            ("forecast-settings",),
        ),
        Row(
            "the guard",
            "three liars of twenty",
            "built",
            "With and without the guard, every selector, clients alike and unlike.",
            ("liars-alike", "liars-unlike"),
        ),
        Row(
            "noise on reports",
            "regret and losses with clipped and noisy reports",
            "built",
            "With ε <= 1 selection that learns from norms is worse than uniform sampling.",
            ("report-noise",),
        ),
        Row(
            "`timed-md`",
            "`md` with durations",
            "built",
            "Its tests compare it with a grid search.",
            (),
            ("timed-md",),
        ),
        Row(
            "`timed-forecast`",
            "`forecast` with durations",
            "built",
            "The time to accuracy, beside Oort, FedBuff and over-selection.",
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
            "A baseline, biased on purpose.",
            (),
            ("oort",),
        ),
        Row(
            "`tifl`",
            "TiFL, Table 1 (HPDC 2020)",
            "built",
            "A baseline, biased on purpose; without the adaptive policy, which needs the accuracy by tier.",
            (),
            ("tifl",),
        ),
        Row("`full`", "all available clients", "built", "The limit of every selector.", (), ("full",)),
    ),
)
