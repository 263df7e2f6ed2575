"""Which clients may be selected: by name, by tag, or by a property that they report."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

TAGS = "tags"
"""The property that holds the tags of a client: a list of names, or one name."""

Value: TypeAlias = bool | int | float | str | list[str]
"""The value of a property of a client."""


@dataclass(frozen=True, kw_only=True)
class Eligibility:
    """The clients that may be selected. A client must meet every condition that is given.

    The selection is made among the eligible clients, as if all others were unavailable. So an unbiased
    selector estimates the mean of the updates of the available eligible clients, and not of all clients.

    Patterns are those of file names: ``*`` is any text, ``?`` is one character, ``[0-4]`` is one of some
    characters. Case matters.

    Attributes
    ----------
    names : str or sequence of str (default: every name)
        Patterns. The identity of a client must match one of them.
    tags : str or sequence of str (default: none)
        Patterns. Each of them must match one of the client's tags.
    properties : mapping of str to value (default: empty)
        The properties that a client must have, by name: True or False, a number, or a pattern. ``group`` is
        the client's group. A client without the property is not eligible.

        True and False match themselves and the texts "true" and "false", in upper or lower case, but no
        number. Any other value is a pattern for a text, or for a number as text. It also matches a number of
        the same value: 1 and "1" match 1, 1.0 and "1"; "01" matches 1, 1.0 and "01", but not "1". If a
        property is a list, one of its texts must match.

    Examples
    --------
    >>> chargers = Eligibility(names="site-*", properties={"charging": True})
    >>> chargers.admits("site-3", {"charging": True})
    True
    >>> chargers.admits("site-3", {"charging": False})
    False
    >>> print(chargers)
    site-*,charging=true
    """

    names: str | tuple[str, ...] | list[str] = ()
    tags: str | tuple[str, ...] | list[str] = ()
    properties: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("names", "tags"):
            given = getattr(self, name)
            patterns = (given,) if isinstance(given, str) else given
            if not isinstance(patterns, tuple | list) or not all(isinstance(each, str) for each in patterns):
                raise TypeError(f'eligible.{name} = {given!r}: must be a pattern such as "site-*", or a list')
            if "" in patterns:
                raise ValueError(f'eligible.{name} = {given!r}: must hold patterns such as "site-*"')
            object.__setattr__(self, name, tuple(patterns))
        if not isinstance(self.properties, Mapping):
            raise TypeError(
                f'eligible.properties = {self.properties!r}: must be by name, such as {{"charging": True}}'
            )
        for key, value in self.properties.items():
            if not isinstance(key, str) or not key:
                raise TypeError(f"eligible.properties holds the name {key!r}: must be text")
            if not isinstance(value, bool | int | float | str) or value == "":
                raise TypeError(
                    f"eligible.properties[{key!r}] = {value!r}: must be True, False, a number or a pattern"
                )
        object.__setattr__(self, "properties", dict(self.properties))

    @classmethod
    def parse(cls, text: str) -> "Eligibility":
        """Return the conditions in a text such as "site-1*|site-2*,tag:hospital,charging=true".

        Conditions have commas between them. ``NAME=VALUE`` is a property, ``tag:PATTERN`` a tag, and anything
        else a pattern of names, or several with ``|`` between them. There is no other comparison, such as
        ``!=`` or ``<``; patterns such as ``[12]`` and ``[!3]`` may serve instead.
        """
        names: list[str] = []
        tags: list[str] = []
        properties: dict[str, bool | int | float | str] = {}
        for part in map(str.strip, text.split(",")):
            name, equals, value = map(str.strip, part.partition("="))
            if equals and (name.endswith(("!", "<", ">")) or value.startswith("=")):
                raise ValueError(
                    f"eligible = {text!r}: {part!r} must be NAME=VALUE, without any other comparison; VALUE "
                    "may be a pattern, such as eu-* or [!3]"
                )
            if name and value:
                properties[name] = value.lower() == "true" if value.lower() in ("true", "false") else value
            elif part.startswith("tag:") and len(part) > len("tag:"):
                tags.append(part.removeprefix("tag:"))
            elif part and not equals and not names and all(part.split("|")):
                names = part.split("|")
            else:
                raise ValueError(
                    f"eligible = {text!r}: {part!r} must be a pattern of names such as site-1*|site-2* (at "
                    "most one), tag:PATTERN, or NAME=VALUE"
                )
        return cls(names=names, tags=tags, properties=properties)

    @classmethod
    def of(cls, given: "Eligible") -> Callable[[int], "Eligibility"]:
        """Return a function of the round that returns the conditions of the round."""
        if isinstance(given, str):
            given = cls.parse(given)
        if isinstance(given, Eligibility):
            fixed = given
            return lambda round: fixed
        if not callable(given):
            raise TypeError(
                f'eligible = {given!r}: must be an Eligibility, text such as "site-*", or a function of the '
                "round that returns one of them"
            )
        function = given

        def of_round(round: int) -> Eligibility:
            found = function(round)
            if not isinstance(found, Eligibility | str):
                raise TypeError(f"eligible({round}) = {found!r}: must be an Eligibility, or text")
            return found if isinstance(found, Eligibility) else cls.parse(found)

        return of_round

    @property
    def needs_properties(self) -> bool:
        """Whether the conditions depend on what clients report, which may change between rounds."""
        return bool(self.tags or self.properties)

    def admits(self, name: str, properties: Mapping[str, Value]) -> bool:
        """Return whether the client with this identity and these properties is eligible."""
        if self.names and not any(fnmatchcase(name, pattern) for pattern in self.names):
            return False
        tags = properties.get(TAGS, [])
        tags = tags if isinstance(tags, list) else [str(tags)]
        if not all(any(fnmatchcase(tag, pattern) for tag in tags) for pattern in self.tags):
            return False
        return all(
            key in properties and _equal(properties[key], value) for key, value in self.properties.items()
        )

    def __bool__(self) -> bool:
        return bool(self.names or self.needs_properties)

    def __str__(self) -> str:
        parts = ["|".join(self.names)] if self.names else []
        parts += [f"tag:{tag}" for tag in self.tags]
        parts += [f"{key}={_shown(value)}" for key, value in self.properties.items()]
        return ",".join(parts)


Eligible: TypeAlias = Eligibility | str | Callable[[int], Eligibility | str]
"""Conditions, a text that `Eligibility.parse` reads, or a function that takes the number of the round and
returns one of them."""


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _equal(found: Value, wanted: bool | int | float | str) -> bool:
    """Return whether a property has the wanted value. A number never equals True or False."""
    if isinstance(found, list):
        return any(_equal(each, wanted) for each in found)
    if isinstance(found, bool) or isinstance(wanted, bool):
        return _shown(found).lower() == _shown(wanted)  # an app may send "true" for True
    text = str(wanted)
    return fnmatchcase(str(found), text) or (not isinstance(found, str) and found == _number(text))


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def checked_properties(name: str, properties: Any) -> dict[str, Value]:
    """Return the properties of a client, if they have allowed names and values."""
    if not isinstance(properties, Mapping) or not all(isinstance(key, str) for key in properties):
        raise TypeError(f'{name} = {properties!r}: must be by name, such as {{"charging": True}}')
    for key, value in properties.items():
        is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
        if not isinstance(value, bool | int | float | str) and not (
            is_list and all(isinstance(each, str) for each in value)
        ):
            raise TypeError(
                f"{name}[{key!r}] = {value!r}: must be True, False, a number, text or a list of text"
            )
    return {key: list(each) if isinstance(each, tuple | list) else each for key, each in properties.items()}
