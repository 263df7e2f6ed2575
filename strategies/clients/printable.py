"""Makes clients' text safe to print: the result cannot move a terminal's cursor or clear the screen."""

from collections.abc import Sequence

MOST_NAMES = 20  # the most names that one line of the log lists
LONGEST_NAME = 128  # the most characters of an identity or a group
LONGEST_REASON = 300  # the most characters of a reason, which may contain a client's text


def printable(text: object, longest: int | None = LONGEST_REASON, *, keep: str = "") -> str:
    r"""Return the text; an escape like ``\x1b`` replaces each character that `str.isprintable` refuses.

    The replaced characters are control characters, characters that change the direction of writing,
    unassigned and private characters, and all separators of Unicode except the space.

    Parameters
    ----------
    text : object
        Any object; it is converted with ``str``.
    longest : int, optional
        The largest length of the result in characters (default: 300). A longer result is cut and ends with
        "…". None: no limit.
    keep : str (default: "")
        Characters that are not replaced, such as a line feed.

    Examples
    --------
    >>> print(printable("client\x1b[2J-7"))
    client\x1b[2J-7
    >>> printable("abcdef", 4)
    'abc…'
    """
    found = str(text)
    if longest is not None and len(found) > longest:
        found = f"{found[: longest - 1]}…"
    if not found.isprintable():
        found = "".join(
            each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
            for each in found
        )
    return found if longest is None or len(found) <= longest else f"{found[: longest - 1]}…"


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun, in the singular or the plural (default: the singular with an s).

    Examples
    --------
    >>> counted(1, "client"), counted(0, "client"), counted(2, "reply", "replies")
    ('1 client', '0 clients', '2 replies')
    """
    return f"{number} {one if number == 1 else several or one + 's'}"


def listed(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Return the first ``most`` names in one line, and how many names are left out, if any.

    Examples
    --------
    >>> print(listed(["a", "b", "c"], 2))
    a, b and 1 more
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
