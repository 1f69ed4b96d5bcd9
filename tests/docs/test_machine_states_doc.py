"""docs/design.md draws the states of a machine as :data:`timers.core.steps.STEPS` has them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from timers.core.steps import STEPS, State

DESIGN = (Path(__file__).parents[2] / "docs" / "design.md").read_text()


def drawn() -> list[str]:
    """The rows of the table: what each method does in each state."""
    methods = list(dict.fromkeys(name for state in reversed(State) for name in STEPS[state]))
    rows = [f"| state | {' | '.join(f'`{name}`' for name in methods)} |", "|---" * (len(methods) + 1) + "|"]
    for state in State:
        cells = []
        for name in methods:
            after = [each.value for each in STEPS[state].get(name, ())]
            cells.append("stays" if after == [state.value] else " · ".join(after))
        rows.append(f"| {state.value} | {' | '.join(cells)} |")
    return rows


def test_the_table_of_states_is_that_of_the_code() -> None:
    section = re.split(r"^### ", DESIGN, flags=re.MULTILINE)
    (found,) = [text for text in section if text.startswith("The states of a machine\n")]
    rows = [line for line in found.splitlines() if line.startswith("|")]
    assert rows == drawn(), "\n".join(drawn())


def test_each_state_has_a_row_and_a_reason() -> None:
    assert STEPS.keys() == set(State)
    source = inspect.getsource(State)
    assert all(re.search(rf'{state.name} = "{state.value}"\n    """\w', source) for state in State)
