"""The grid of a sweep: what a file means, and which files are refused."""

import re
from pathlib import Path

import pytest

from deploy.sweeps.grid import planned_trials, read_sweep

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = "num-clients = 5\nclients-per-round = 2\nnum-rounds = 2\n"


def file_with(folder, text):
    path = folder / "sweep.toml"
    path.write_text(text)
    return path


def test_each_list_is_an_axis(tmp_path):
    text = SMALL + 'selector = ["md", {name = "adaptive-osmd", alpha = [0.1, 0.4]}]\nseed = "1-2"\n'
    text += "local-steps = [1, 2]\n"
    trials = planned_trials(read_sweep(file_with(tmp_path, text)), tmp_path / "out")
    assert len(trials) == 3 * 2 * 2
    assert [(each.selector, each.case, each.seed) for each in trials[:4]] == [
        ("md", "local-steps=1", 1),
        ("adaptive-osmd:alpha=0.1", "local-steps=1", 1),
        ("adaptive-osmd:alpha=0.4", "local-steps=1", 1),
        ("md", "local-steps=1", 2),
    ]
    last = trials[-1].trial.run_config
    assert (last["selector"], last["selector-settings"]) == ("adaptive-osmd", "alpha=0.4")
    assert (last["local-steps"], last["seed"], last["num-rounds"]) == (2, 2, 2)


def test_cases_are_settings_that_vary_together(tmp_path):
    text = SMALL + "batch-size = [8, 16]\n"
    text += '[[case]]\nname = "adam"\nserver-strategy = "FedAdam:eta=0.05"\nlearning-rate = 0.1\n'
    text += "[[case]]\nlearning-rate = [0.5, 0.2]\n"
    sweep = read_sweep(file_with(tmp_path, text))
    assert [text for text, _, _ in sweep.cases] == [
        "adam batch-size=8",
        "adam batch-size=16",
        "batch-size=8 learning-rate=0.5",
        "batch-size=8 learning-rate=0.2",
        "batch-size=16 learning-rate=0.5",
        "batch-size=16 learning-rate=0.2",
    ]
    assert sweep.cases[0][2]["server-strategy"] == "FedAdam:eta=0.05"


def test_paths_are_relative_to_the_file(tmp_path):
    text = SMALL + 'client-sizes = "sizes.json"\nimport = ["my.py", "package.module"]\n'
    sweep = read_sweep(file_with(tmp_path, text))
    assert sweep.cases[0][2]["client-sizes"] == str(tmp_path / "sizes.json")
    assert sweep.imports == [str(tmp_path / "my.py"), "package.module"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = [1", "is not TOML"),
        ('num-client = 5\nselector = "md"', "num-client: unknown setting (did you mean num-clients?)"),
        ("seeds = 1", "seeds: unknown setting (did you mean seed?)"),
        ("[[case]]\nlearning-rat = 0.1", "learning-rat: unknown setting (did you mean learning-rate?)"),
        ('output-dir = "x"', "output-dir: cannot be set in the file: use the option --out"),
        ('selector-settings = "alpha=1"', "selector-settings: cannot be set in the file: give them with"),
        ("resume = true", "resume: cannot be set in the file"),
        ('track = "wandb"', "track: cannot be set in the file: use the option --track"),
        ("batch-size = []", "batch-size = []: must have at least one value"),
        ("batch-size = [8, 8]", "batch-size = [8, 8]: a value is given twice"),
        ("batch-size = [[8]]", "batch-size = [8]: must be a number, true, false or text"),
        ("batch-size = 2024-01-01", "must be a number, true, false or text"),
        ('seed = "3-1"', "seed = '3-1': must be like 1-5"),
        ("seed = [1, 1]", "seed = [1, 1]: must be at most 1000 different whole numbers"),
        ("seed = 1.5", "seed = 1.5: must be at most"),
        ("seed = true", "seed = True: must be at most"),
        ("seed = []", "seed = []: must be at most"),
        ("selector = []", "selector = []: must be different selectors"),
        ('selector = ["md", "md"]', "must be different selectors"),
        ("selector = 3", "selector = 3: must be text"),
        ("selector = {alpha = 1}", "must be text such as"),
        ('selector = {name = "osmd", alpha = []}', "selector: alpha = []: must have at least one value"),
        ('baseline = "unifrom"\nselector = ["uniform"]', "did you mean uniform?): must be one of uniform"),
        ("import = 3", "import = 3: must be a file or module"),
        ("case = 1", "case = 1: must be tables"),
        ("[[case]]\nseed = 1", "seed: must not be in a [[case]]"),
        ("batch-size = 8\n[[case]]\nbatch-size = 4", "batch-size: is given at the top of the file and in a"),
        ("[[case]]\nbatch-size = 4\n[[case]]\nbatch-size = 4", "case 'batch-size=4': given twice"),
        ("[[case]]\nname = 1", "name = 1: must be text"),
        ("[[case]]\nname = 'a'\n[[case]]\nname = 'a'", "case 'a': given twice"),
        (
            f"batch-size = {list(range(1, 400))}\nlocal-steps = {list(range(1, 400))}",
            "the grid has more than 100000 trials",
        ),
        (
            f"selector = {{name = 'osmd', alpha = {list(range(1, 400))}, beta = {list(range(1, 400))}}}",
            "selector: more than 100000 selectors",
        ),
        (f"seed = {'[' * 2000}{']' * 2000}", "is not TOML: maximum recursion depth exceeded"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=r"sweep\.toml: ") as error:
        read_sweep(file_with(tmp_path, text))
    assert message in str(error.value)


def test_the_examples_are_right():
    assert len(planned_trials(read_sweep(EXAMPLES / "sweep.toml"), Path("out"))) == 27
    mnist = read_sweep(EXAMPLES / "mnist.toml")
    assert len(mnist.selectors) * len(mnist.cases) * len(mnist.seeds) == 45
    assert len((EXAMPLES / "mnist.toml").read_text().splitlines()) == 10


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_sweep(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('selector = "unifrom"', "selector = 'unifrom': no such selector (did you mean uniform?)"),
        ('selector = "adaptive-osmd:alpa=1"', "alpa"),
        ('selector = {name = "adaptive-osmd", alpha = 7}', "alpha = 7"),
        ("clients-per-round = [2, 9]", "clients-per-round = 9: must be between 1 and 5 (the number of "),
        ("learning-rate = [0.1, -1]", "learning-rate = -1: must be greater than 0"),
        ('partition = "iid"', "partition = 'iid': must be one of"),
        ('task = "nope"', "task = 'nope': must be one of"),
        ('local-steps = "5"', "local-steps = '5': must be a valid integer"),
        ('selector = "personalised-osmd"', "'personalised-osmd': its clients keep models of their own"),
        ("over-selection = 1.5", "over-selection = 1.5: needs response-times"),
        ('availability = "markov:rates=7"', "availability = 'markov:rates=7'"),
        ('availability = "marcov"', "availability = 'marcov'"),
        ('availability-trace = "none.csv"', "none.csv': cannot be read"),
        ('client-sizes = "none.json"', "none.json': cannot be read"),
        ('selector = "naive-group:group-shares=1/1"', "client-00 cannot take part: its group is None"),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(tmp_path, text, message):
    given = {line.split(" = ")[0] for line in text.splitlines()}
    rest = "".join(f"{line}\n" for line in SMALL.splitlines() if line.split(" = ")[0] not in given)
    sweep = read_sweep(file_with(tmp_path, f"{rest}{text}\n"))
    with pytest.raises(ValueError, match=re.escape(message)):
        planned_trials(sweep, tmp_path / "out")
    assert not (tmp_path / "out").exists()
