"""The commands of all benchmarks: ``cohort bench NAME``, and also ``python -m benchmarks NAME``.

A command imports its benchmark's module when it runs, so that `--help` is fast.
"""

import json
import sys
from collections.abc import Collection, Iterable
from math import inf, isfinite
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from deploy.option_types import Finite
from deploy.runs.imports import GroupWithImports

DATA_VARIABLE = "COHORT_DATA"

bench = typer.Typer(
    cls=GroupWithImports, no_args_is_help=True, add_completion=False, help="Measure what this project claims."
)


def _option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help)


def _count(help: str) -> Any:
    return typer.Option(min=1, help=help)


def _finite_option(help: str, **limits: Any) -> Any:
    """Return an option for a finite number within limits, see `Finite`."""
    return typer.Option(click_type=Finite(**limits), help=help)


Rounds = Annotated[int, _count("Rounds of each measurement.")]
Seeds = Annotated[int, _count("Number of seeds.")]
Json = Annotated[bool, _option("Print JSON instead of the table.", "--json")]
NoStock = Annotated[
    bool,
    _option("Leave out stock Flower, to which every user of this machine can submit runs.", "--no-stock"),
]
Names = Annotated[list[str] | None, typer.Argument(show_default=False)]
Jobs = Annotated[int, _count("Processes, of one thread each.")]
Data = Annotated[
    Path | None,
    typer.Option(
        envvar=DATA_VARIABLE,
        file_okay=False,
        help="Folder with mnist.npz and the other data files that experiments need.",
    ),
]
Out = Annotated[Path, _option("Folder for tables, figures and the results of every seed.")]


@bench.callback()
def _bench() -> None:
    """Measure what this project claims."""


def _command_of_experiments(name: str, summary: str) -> None:
    """Add a command that runs experiments: all that `experiments` lists under the name."""

    @bench.command(name, help=summary)
    def run(
        experiments: Names = None,
        seeds: Annotated[
            int | None, _count("Seeds of each experiment. (default: as the experiment defines)")
        ] = None,
        jobs: Jobs = 1,
        data: Data = None,
        out: Out = Path("runs/papers"),
        quick: Annotated[
            bool,
            _option(
                "Run a small form of each experiment: one seed, about a minute, into OUT/quick.", "--quick"
            ),
        ] = False,
        fresh: Annotated[
            bool, _option("Repeat the seeds that an earlier run has finished.", "--fresh")
        ] = False,
        record: Annotated[
            bool, _option("Write the results to results/NAME.json (see `cohort bench results`).", "--record")
        ] = False,
        list_them: Annotated[bool, _option("List the experiments, and stop.", "--list")] = False,
    ) -> None:
        from benchmarks import experiments as every
        from benchmarks.experiments.command import list_experiments, run_experiments

        known = every.EXPERIMENTS if name == "papers" else every.SELECTION
        if list_them:
            list_experiments(known)
        else:
            run_experiments(known, experiments, seeds, jobs, data, out, quick, fresh, record)


_command_of_experiments(
    "papers",
    "Run the papers' experiments: all, or the named ones.\n\n"
    "Finished seeds are kept: after Ctrl-C the same command goes on where it stopped.",
)
_command_of_experiments(
    "selectors",
    "Run the experiments that are about selection alone.\n\n"
    "These experiments train no neural networks. They select for given streams of norms, in toy problems, "
    "and in convex problems.",
)


@bench.command()
def results(
    experiments: Names = None,
    write: Annotated[
        bool, _option("Write docs/results.md and docs/results/ from the data files.", "--write")
    ] = False,
    check: Annotated[
        bool, _option("Compare pages, digests and a sample of seeds with the code.", "--check")
    ] = False,
    renew: Annotated[
        bool, _option("Rerun one seed of each outdated file, and renew its digest if equal.", "--renew")
    ] = False,
    measure: Annotated[
        str, typer.Option(metavar="COMMAND", help='Run and record a benchmark: "selection --sizes 1e4".')
    ] = "",
    sample: Annotated[
        int | None, typer.Option(help="Seed of the sample. (default: random, printed)", min=0)
    ] = None,
    budget: Annotated[float, _finite_option("CPU seconds of the sample.", min=0)] = 40.0,
    data: Data = None,
) -> None:
    """Write, check or renew the recorded results in results/.

    EXPERIMENTS are the outdated results to renew: by default, all outdated results.
    """
    from benchmarks.results import command

    if write + check + renew + bool(measure) != 1:
        _fail("results: name one of --write, --check, --renew and --measure COMMAND")
    if experiments and not renew:
        _fail(f"experiment = {experiments[0]!r}: goes with --renew only")
    if write:
        command.write_all()
    elif measure:
        command.measure_one(measure)
    elif renew:
        command.renew_all(experiments, data)
    else:
        command.check(sample, budget, data)


@bench.command()
def rounds(
    nodes: Annotated[str, _option("Numbers of nodes of a federation, with commas.")] = "4",
    per_round: Annotated[int | None, _count("Clients that train in a round. (default: all)")] = None,
    rounds: Annotated[int, _count("Rounds of each kind, in turns of three.")] = 12,
    no_stock: NoStock = False,
    profile: Annotated[
        bool, _option("Print instead how many CPU seconds each program takes in a round.", "--profile")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure rounds without work, beside Flower's own engine."""
    from benchmarks.rounds import measure as benchmark

    try:
        numbers = [int(number) for number in nodes.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        _fail(f"nodes = {nodes}: must be numbers >= 1, with commas")
    if per_round is not None and per_round > min(numbers):
        _fail(f"per-round = {per_round}: must be between 1 and {min(numbers)} (nodes)")
    if profile:
        print(benchmark.profile(numbers[0], per_round or numbers[0], rounds))
    else:
        _show("rounds", benchmark.compare(numbers, per_round, rounds, no_stock), as_json)


@bench.command()
def messages(
    nodes: Annotated[int, _count("Nodes of each federation.")] = 2,
    rounds: Annotated[int, _count("Measured rounds.")] = 8,
    no_stock: NoStock = False,
    as_json: Json = False,
) -> None:
    """Measure the CPU time of a message, beside stock Flower."""
    from benchmarks.messages.measure import compare

    _show("messages", [compare(nodes, rounds, no_stock)], as_json)


@bench.command()
def models(
    megabytes: Annotated[str, _option("Megabytes of the model, with commas, each >= 1.")] = "100",
    nodes: Annotated[int, _count("Nodes of each federation.")] = 5,
    rounds: Annotated[int, _count("Measured rounds.")] = 3,
    no_stock: NoStock = False,
    stock_up_to: Annotated[
        float, _finite_option("Megabytes of the largest model that stock Flower gets.", min=0)
    ] = 1e9,
    as_json: Json = False,
) -> None:
    """Measure rounds with a large model, beside stock Flower."""
    from benchmarks.models.measure import compare

    sizes = _numbers("megabytes", megabytes, 1)
    _show("models", compare(sizes, nodes, rounds, 0.0 if no_stock else stock_up_to), as_json)


@bench.command()
def networks(
    networks: Annotated[str, _option("cnn, resnet18, with commas.")] = "cnn,resnet18",
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. (default: cuda if there is a GPU)", show_default=False)
    ] = None,
    seconds: Annotated[float, _finite_option("Seconds of each engine with each network.", min=0)] = 10.0,
    as_json: Json = False,
) -> None:
    """Measure the simulation of the papers' networks, on a GPU."""
    from benchmarks.networks import CASES, measure
    from benchmarks.results.machine import gpu

    names = _names("networks", networks, CASES)
    if device not in (None, "cpu", "cuda") or (device == "cuda" and not gpu()):
        _fail(f"device = {device!r}: must be cpu{', or cuda' if gpu() else ': torch finds no GPU here'}")
    _show("networks", measure(names, device, seconds), as_json)


@bench.command()
def half_precision(
    tasks: Annotated[str, _option("digits, mnist, mnist-mlp, with commas.")] = "digits,mnist,mnist-mlp",
    seeds: Seeds = 10,
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Measure what half precision on the wire costs in accuracy."""
    from benchmarks.half_precision import TASKS, compare

    _show("half-precision", compare(_names("tasks", tasks, TASKS), seeds, data), as_json)


@bench.command()
def devices(
    nodes: Annotated[int, _count("Simulated devices that are online.")] = 1000,
    per_round: Annotated[int, _count("Devices that train in a round.")] = 50,
    rounds: Annotated[int, _count("Measured rounds.")] = 20,
    megabytes: Annotated[float, _finite_option("Megabytes of the model, > 0.", min=0, min_open=True)] = 1.0,
    layers: Annotated[int, _count("Arrays of the model.")] = 4,
    delay: Annotated[float, _finite_option("Seconds that a device takes to train.", min=0)] = 0.0,
    leaves: Annotated[float, _finite_option("Devices that leave in a minute, without a sign.", min=0)] = 0.0,
    away: Annotated[float, _finite_option("Seconds until such a device is back.", min=0)] = 10.0,
    processes: Annotated[int, _count("Processes of the load generator.")] = 1,
    selector: Annotated[str, _option("Selector of the run.")] = "uniform",
    as_json: Json = False,
) -> None:
    """Measure rounds with many simulated devices."""
    from benchmarks.devices.cluster import Settings
    from benchmarks.devices.measure import measure

    if per_round > nodes:
        _fail(f"per-round = {per_round}: must be between 1 and {nodes} (nodes)")
    if processes > nodes:
        _fail(f"processes = {processes}: must be between 1 and {nodes} (nodes)")
    settings = Settings(nodes, per_round, rounds, megabytes, layers, delay, leaves, away, processes, selector)
    _show("devices", [measure(settings)], as_json)


@bench.command()
def front_ends(
    fronts: Annotated[str, _option("Numbers of front ends that share PostgreSQL, with commas.")] = "1,2,4",
    nodes: Annotated[int, _count("Simulated devices that are online.")] = 1000,
    per_round: Annotated[str, _option("Devices that train in a round, with commas.")] = "50,10",
    rounds: Annotated[int, _count("Measured rounds of each.")] = 10,
    turns: Annotated[int, _count("Turns, each with every number of front ends, and with SQLite.")] = 3,
    quick: Annotated[bool, _option("60 devices, 6 and 2 a round, two rounds, one turn.", "--quick")] = False,
    as_json: Json = False,
) -> None:
    """Measure front ends that share PostgreSQL, beside SQLite."""
    from benchmarks.devices.front_ends import compare

    if quick:
        nodes, per_round, rounds, turns = 60, "6,2", 2, 1
    counts, numbers = (
        [int(n) for n in _numbers(*given, 1)] for given in (("fronts", fronts), ("per-round", per_round))
    )
    if max(numbers) > nodes:
        _fail(f"per-round = {per_round}: must be between 1 and {nodes} (nodes)")
    _show("front-ends", compare(counts, nodes, numbers, rounds, turns), as_json)


@bench.command()
def waiting(
    fronts: Annotated[str, _option("Numbers of front ends that share PostgreSQL, with commas.")] = "2,4",
    nodes: Annotated[int, _count("Simulated devices that are online.")] = 10_000,
    seconds: Annotated[
        float, _finite_option("Seconds; devices ask again every 7 to 13 minutes.", min=0, min_open=True)
    ] = 780.0,
    processes: Annotated[int, _count("Processes of the load generator.")] = 2,
    quick: Annotated[bool, _option("60 devices, ten seconds.", "--quick")] = False,
    as_json: Json = False,
) -> None:
    """Measure what devices that wait cost front ends."""
    from benchmarks.devices.front_ends import wait

    if quick:
        nodes, seconds = 60, 10.0
    counts = [int(count) for count in _numbers("fronts", fronts, 1)]
    _show("waiting", wait(counts, nodes, seconds, processes), as_json)


@bench.command()
def aggregation(
    replies: Annotated[int, _count("Replies of a round.")] = 100,
    parameters: Annotated[float, _finite_option("Parameters of the model.", min=1)] = 1e7,
    layout: Annotated[str, _option("Arrays of the model: one, or layers as in a ResNet.")] = "layers",
    payloads: Annotated[
        int | None, _count("Different models among the replies. (default: all differ)")
    ] = None,
    repeats: Annotated[int, _count("Measured rounds.")] = 5,
    selectors: Annotated[str, _option("Selectors, with commas.")] = "uniform,adaptive-osmd",
    as_json: Json = False,
) -> None:
    """Measure the aggregation of large models, beside FedAvg."""
    from benchmarks.aggregation import LAYOUTS, measure

    if layout not in LAYOUTS:
        _fail(f"layout = {layout!r}: must be one of {', '.join(LAYOUTS)}")
    names = selectors.split(",")
    rows = measure(replies, int(parameters), layout, payloads or replies, repeats, names)
    _show("aggregation", rows, as_json)


@bench.command()
def selection(
    sizes: Annotated[str, _option("Numbers of clients, with commas.")] = "1e4,1e5,1e6,1e7",
    names: Annotated[str, _option("Selectors and peers, with commas. (default: all)")] = "",
    every: Annotated[bool, _option("Measure every selector in every scenario that it has.", "--all")] = False,
    seconds: Annotated[float, _finite_option("CPU seconds of each cell.", min=0)] = 2.0,
    as_json: Json = False,
) -> None:
    """Measure selection among 10^4 to 10^7 clients."""
    from benchmarks.selection import compare

    numbers = [int(size) for size in _numbers("sizes", sizes, 1)]
    _show("selection", compare(numbers, names.split(",") if names else [], every, seconds), as_json)


@bench.command()
def population(
    sizes: Annotated[str, _option("Numbers of clients, with commas, each >= 200.")] = "1e4,1e5,1e6",
    names: Annotated[str, _option("Selectors, with commas.")] = "forecast",
    path: Annotated[str, _option("simulator, grid or all.")] = "all",
    rounds: Annotated[int, _count("Measured rounds.")] = 5,
    as_json: Json = False,
) -> None:
    """Measure each part of a round among 10^4 to 10^6 clients."""
    from benchmarks.population import PATHS, compare

    if path not in (*PATHS, "all"):
        _fail(f"path = {path!r}: must be one of {', '.join(PATHS)}, all")
    numbers = [int(size) for size in _numbers("sizes", sizes, 200)]
    columns = compare(numbers, names.split(","), PATHS if path == "all" else [path], rounds)
    _show("population", columns, as_json)


@bench.command()
def throughput(
    workload: Annotated[str, _option("W1, W2, W3, W4 or all (the first three).")] = "all",
    engines: Annotated[str, _option("Engines, with commas. (default: all)")] = "",
    seconds: Annotated[float, _finite_option("Seconds that each engine runs.", min=0, min_open=True)] = 6.0,
    turns: Annotated[int, _count("Blocks of rounds that these seconds are split into.")] = 5,
    data: Annotated[
        Path | None, typer.Option(help="Draw samples from this .npz. (default: noise)", dir_okay=False)
    ] = None,
    peers_python: Annotated[
        Path, _option("Interpreter that has the packages of benchmarks/peers.txt.")
    ] = Path(".peers/bin/python"),
    check: Annotated[
        bool, _option("Compare the models that the engines train, and measure nothing.", "--check")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure client updates per second, beside other engines."""
    from benchmarks.throughput.engines import ENGINES
    from benchmarks.throughput.report import compare, wrong
    from benchmarks.throughput.workloads import WORKLOADS

    names = _names("engines", engines, ENGINES) if engines else list(ENGINES)
    if workload not in (*WORKLOADS, "all"):
        _fail(f"workload = {workload!r}: must be one of {', '.join(WORKLOADS)}, all")
    if data is not None and not data.is_file():
        _fail(f"data = {data}: there is no such file")
    found = compare(workload, names, seconds, turns, data, peers_python, check)
    _show("throughput", [found], as_json)
    if differing := wrong(found):
        _fail(f"these engines train another model: {'; '.join(differing)}", 1)


@bench.command()
def over_selection(rounds: Rounds = 4000, seeds: Seeds = 5, as_json: Json = False) -> None:
    """Measure the bias and the time of over-selection."""
    from benchmarks.over_selection import measure

    _show("over-selection", measure(rounds, seeds), as_json)


@bench.command()
def time_to_accuracy(
    seeds: Seeds = 5,
    quick: Annotated[bool, _option("One setting, two seeds, a tenth of the time.", "--quick")] = False,
    processes: Annotated[
        bool, _option("Real client processes that sleep, beside their simulation.", "--processes")
    ] = False,
    devices: Annotated[
        Path | None,
        typer.Option(
            help="Speeds of devices, in FedScale's form as JSON. (default: 200 drawn devices)",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure the time to an accuracy with slow clients."""
    from benchmarks.time_to_accuracy import processes as real
    from benchmarks.time_to_accuracy import simulated
    from benchmarks.time_to_accuracy.federation import DEVICES
    from simulation.measured_speeds import read_device_speeds

    try:
        read_device_speeds(devices or DEVICES)
    except ValueError as error:
        _fail(f"devices = {error}")
    found = real.measure(seeds) if processes else simulated.measure(seeds, quick, devices or DEVICES)
    _show("time-to-accuracy", [found], as_json)


@bench.command()
def advice(
    seeds: Seeds = 20,
    rounds: Rounds = 150,
    clients: Annotated[int, typer.Option(min=2, help="Number of clients.")] = 50,
    per_round: Annotated[int, _count("Clients that are drawn in a round.")] = 5,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Measure how often advice from a log is right."""
    from benchmarks.advice.measure import Setting, measure

    if per_round >= clients:
        _fail(f"per-round = {per_round}: must be between 1 and {clients - 1} (one less than clients)")
    _show("advice", measure(range(seeds), Setting(rounds, clients, per_round), jobs), as_json)


def _show(name: str, output: Iterable[Any], as_json: bool) -> None:
    """Print the output of a benchmark: each value as a line of JSON as soon as it is there, or the table."""
    if as_json:
        for each in output:
            print(json.dumps(_finite(each)), flush=True)
        return
    from benchmarks.results.tables import output_table

    print("\n".join(output_table(name, [_finite(each) for each in output])))


def _finite(value: Any) -> Any:
    """Return a value in which None replaces the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def _names(option: str, text: str, known: Collection[str]) -> list[str]:
    """Return the names in ``text``, which commas separate; if a name is not in ``known``, end the command."""
    names = text.split(",")
    for name in names:
        if name not in known:
            _fail(f"{option} = {name!r}: must be one of {', '.join(known)}")
    return names


def _numbers(option: str, text: str, low: float) -> list[float]:
    """Return the numbers in ``text``, which commas separate.

    If ``text`` holds something else, or a number that is not finite or is below ``low``, end the command.
    """
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(low <= each < inf for each in numbers):
        _fail(f"{option} = {text!r}: must be finite numbers with commas, each at least {low:g}")
    return numbers


def _fail(message: str, code: int = 2) -> NoReturn:
    typer.echo(message, err=True)
    sys.exit(code)
