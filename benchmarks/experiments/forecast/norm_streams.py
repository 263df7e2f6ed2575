"""What the default selector is measured on beside the OSMD paper's sections F and G: streams of norms."""

from benchmarks.experiments.forecast.streams import STREAMS, MakeSelector, make_stream, regret_on_stream
from benchmarks.experiments.report import Experiment, Outcome
from strategies.numerics.arrays import Floats
from strategies.selectors import Selector, create

NUM_ROUNDS = 1000
NAMES = ("uniform", "md", "avare", "forecast")


def run_streams(seed: int, quick: bool = False) -> Outcome:
    """Play every stream with every selector, each told the norms of those it drew; quick: a tenth of it."""
    k, num_rounds = 5, NUM_ROUNDS // 10 if quick else NUM_ROUNDS

    def make(name: str) -> MakeSelector:
        def selector(sizes: Floats) -> Selector:
            return create(
                name,
                sizes.size,
                client_sizes=sizes,
                clients_per_round=k,
                num_rounds=num_rounds,
                seed=seed,
            )

        return selector

    cells = {}
    for stream_name in STREAMS:
        stream = make_stream(stream_name, seed, num_rounds=num_rounds)
        regrets = {name: regret_on_stream(make(name), stream, k) for name in NAMES}
        # On equal norms uniform sampling has no regret: there, what is lost of the least loss stands instead.
        r = stream.norms * (stream.sizes / stream.sizes.sum())
        least = float((r.sum(axis=1) ** 2).sum()) / k
        for name, regret in regrets.items():
            equal = regrets["uniform"] < 1e-9 * least
            cells[stream_name, name] = 1 + regret / least if equal else regret / regrets["uniform"]
    return Outcome(cells)


EXPERIMENTS = (
    Experiment(
        name="forecast-streams",
        title="forecast on streams of norms that it was not tuned on",
        source="no paper; `benchmarks.experiments.forecast.streams` says what the streams are",
        run=run_streams,
        seeds=3,
        known={
            ("static", "forecast"): ".052",
            ("common decay", "forecast"): ".235",
            ("drift", "forecast"): ".022",
            ("a tenth jumps", "forecast"): ".064",
            ("noise 1", "forecast"): ".17",
            ("noise 2", "forecast"): ".51",
            ("sizes uninformative", "forecast"): ".051",
            ("sizes anti-informative", "forecast"): ".054",
            ("sizes exact, noise 1", "forecast"): ".275",
            ("all equal", "forecast"): "1.01",
            ("everybody x100", "forecast"): ".027",
            ("half-half cycle", "forecast"): ".19",
            ("80 % zeros", "forecast"): ".076",
        },
        note="Regret over that of uniform sampling, K = 5 of M = 100, 1000 rounds; all equal: loss over the "
        "least. In brackets an earlier design on streams of the same kinds with other parameters.",
    ),
)
