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
            "Within 1.1 times the best selector that starts cold, on each stream.",
            ("forecast-streams",),
        ),
        Row("`full`", "all available clients", "built", "The limit of every selector.", (), ("full",)),
    ),
)
