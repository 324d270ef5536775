from pathlib import Path

from models.decoders import build

from moga.rules.parts import PART_ROLES, PARTS
from moga.rules.roles import find_roles

PAGE = (Path(__file__).parents[2] / "docs" / "roles.md").read_text(encoding="utf-8")


def rows_of(heading):
    """The cells of the first table below a heading."""
    lines = PAGE.partition(f"## {heading}\n")[2].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2 : 2 + len(PARTS) - 1]


def test_the_page_explains_every_part_in_the_words_of_the_table():
    explained = {row[0].strip("`"): row[1] for row in rows_of("The ones that needed a decision")}
    assert explained == {part: meaning for part, meaning in PARTS.items() if part}


def test_the_page_gives_the_roles_that_parts_have_by_themselves():
    roles = {row[0].strip("`"): row[2].split("`")[1] for row in rows_of("The ones that needed a decision")}
    assert roles == {part: PART_ROLES.get(part, "hidden") for part in PARTS if part}
    for family in ("llama", "gpt_oss", "deepseek_v3", "mamba2"):
        found = {(one.part, one.role) for one in find_roles(build(family, 32)) if one.part}
        assert found and found <= set(roles.items())


def test_every_part_is_a_word_of_the_table():
    for family in ("llama", "phi3", "falcon", "gpt_oss", "deepseek_v3", "mamba2"):
        assert {one.part for one in find_roles(build(family, 32))} <= set(PARTS)
