"""The blocks of the guides, for tests that run them as they stand."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(page, heading=""):
    """Return the lines of each command block of a page in docs/, or of its section with a heading.

    A line that ends with a backslash and the next one are one line; comments are left out.
    """
    text = (ROOT / "docs" / page).read_text("utf-8")
    if heading:
        text = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text, re.DOTALL | re.MULTILINE)[2]
    found = re.findall(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    commands = [
        re.sub(r"\\\n\s*", "", block) for language, block in found if language in ("", "bash", "console")
    ]
    return [[re.sub(r"\s+#.*", "", line) for line in block.splitlines()] for block in commands]
