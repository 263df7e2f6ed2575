"""What a selector needs from an app, by the selector's own declarations, and the code that gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flwr.app import MessageType

from strategies.clients.reports import GROUP, INVITATION, NORM, STATUS, UPDATE
from strategies.designs import DESIGNS
from strategies.options.overrides import GROUPS
from strategies.options.selector_check import check_selector

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from strategies.selectors import Selector

ARRAYS = "arrays"
# In place of a type of message: a setting of the run, and a setting of each client.
_SETTING, _CONSTANT = "setting", "constant"
_TEXTS = {
    MessageType.TRAIN: "{} in the reply of @app.train()",
    MessageType.EVALUATE: "{} in the reply of @app.evaluate()",
    STATUS: "{} in the answer to query.status, or declared",
    _SETTING: "the setting {}, which has no default",
    _CONSTANT: "the setting {} of each client",
}
_METRIC = 'MetricRecord({{..., "{}": ...}})'
_CODE = {
    _SETTING: 'selector_settings={{"{}": ...}}',
    _CONSTANT: 'Overrides(settings={{"{}": {{"CLIENT": ...}}}})',
    STATUS: 'ReportingClientApp(report=lambda _: Report({0}="a"))\n'
    'or Overrides(settings={{"{0}s": {{"CLIENT": "a"}}}})',
    NORM: "app = ReportingClientApp()  # not ClientApp()",
    GROUP: '@app.query("group")',
    INVITATION: '@app.query("invitation")',
}
_CODE_OF_FIELD = {
    "num-parts": 'scales = message.content["config"]["part-scales"]\n'
    'MetricRecord({{..., "num-parts": 2,\n    "model-norm": ..., "personal-norm": ...}})',
    ARRAYS: 'app.query("update")(train)  # as for TRAIN',
}


def missing(kind: type[Selector], answers: Mapping[str, Collection[str]]) -> list[tuple[str, str]]:
    """Return what a selector needs and the app does not give: descriptions, each with the code that gives it.

    `answers` holds the fields of the app's reply to each type of message that it answered. The result is
    empty if the app can use the selector as it is.
    """
    asked = {"loss": (MessageType.EVALUATE, "loss"), "group": (GROUP, "group"), "diversity": (UPDATE, ARRAYS)}
    trained = UPDATE if "diversity" in kind.polls_for else NORM
    needs = [asked.get(name, (trained, name.replace("_", "-"))) for name in sorted(kind.polls_for)]
    if kind.clients_decide:
        needs.append((INVITATION, "accepts"))
    if kind.report_used:
        needs.append((MessageType.TRAIN, kind.report_used))
    if kind.part_names:
        needs.append((MessageType.TRAIN, "num-parts"))
    required = [name for name, each in kind.per_client.items() if each.default is None]
    needs += [(STATUS, "group") if name == GROUPS else (_CONSTANT, name) for name in required]
    lacking = [(message, field) for message, field in needs if field not in answers.get(message, ())]
    try:
        check_selector(kind.name, 3, {}, num_rounds=100)
    except ValueError as error:  # "NAME = VALUE: must be given"
        lacking.append((_SETTING, str(error).partition(" = ")[0]))
    return [
        (
            _TEXTS.get(message, f"{{}} in the answer to {message}").format(field),
            (_CODE_OF_FIELD.get(field) or _CODE.get(message, _METRIC)).format(field),
        )
        for message, field in lacking
    ]


def designs_of(kind: type[Selector]) -> list[str]:
    """Return the designs of draws that the selector's setting `design` can name."""
    setting = kind.allowed_settings().get("design")
    return [] if setting is None else [each for each in setting.choices if each in DESIGNS]
