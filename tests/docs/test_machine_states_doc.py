"""docs/design.md draws the states of a machine as :data:`timers.core.steps.STEPS` has them, and the life of a partition
as :data:`timers.machines.life.LIFE`."""

import inspect
import re
from pathlib import Path

from timers.core.steps import STEPS, State
from timers.machines import life

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


def drawn_life() -> list[str]:
    """The rows of the table of lives: what each event does in each state."""
    rows = ["| state | event → next state (*what to do*) |", "|---|---|"]
    for state, steps in life.LIFE.items():
        cells = []
        for event, (after, command) in steps.items():
            does = "" if command is None else f" (*{command.value}*)"
            cells.append(f"{event.value} → {'stays' if after is state else after.value}{does}")
        rows.append(f"| {state.value} | {' · '.join(cells)} |")
    return rows


def rows_of(title: str) -> list[str]:
    """The rows of the table in a section."""
    section = re.split(r"^###? ", DESIGN, flags=re.MULTILINE)
    (found,) = [text for text in section if text.startswith(f"{title}\n")]
    return [line for line in found.splitlines() if line.startswith("|")]


def test_the_table_of_states_is_that_of_the_code() -> None:
    assert rows_of("The states of a machine") == drawn(), "\n".join(drawn())


def test_the_table_of_lives_is_that_of_the_code() -> None:
    assert rows_of("The life of a partition") == drawn_life(), "\n".join(drawn_life())


def test_each_state_has_a_row_and_a_reason() -> None:
    assert STEPS.keys() == set(State) and life.LIFE.keys() == set(life.State)
    for kind, begin in ((State, '\n    """'), (life.State, "  # "), (life.Event, "  # "), (life.Command, "  # ")):
        source = inspect.getsource(kind)
        assert all(re.search(rf'{each.name} = "{each.value}"{begin}\w', source) for each in kind)
