"""docs/recipes.md: what it shows is what the program says."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from rl_cluster.config_files.recipe_spec import ROLE_PARTS, recipe_from_config
from rl_cluster.schema import OnSpec

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "recipes.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_drawings_messages_and_pictures_are_fresh() -> None:
    """python docs/recipe_drawings.py would change nothing."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from recipe_drawings import refresh
    finally:
        sys.path.remove(str(ROOT / "docs"))
    page, pictures = refresh(TEXT)
    assert page == TEXT
    assert [path.name for path in pictures] == ["ppo_four_roles.svg"]
    for path, drawn in pictures.items():
        assert path.read_text(encoding="utf-8") == drawn


def test_the_table_has_every_part_of_a_role() -> None:
    """In the order of the code."""
    rows = [line.split("|")[1].strip(" `") for line in TEXT.split("| part | meaning |")[1].split("\n\n")[0].splitlines()[2:]]
    assert rows == list(ROLE_PARTS)
    assert all(f"`{name}`" in TEXT for name in OnSpec.__annotations__)


def test_the_recipe_at_the_top_is_one(tmp_path: Path) -> None:
    """It composes, and its reward sits on the upper half of the policy's second node."""
    from rl_cluster.config_files.recipe_file import load_recipe

    (tmp_path / "recipe.yaml").write_text(TEXT.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert {name: role.owner for name, role in recipe.roles.items()} == {"policy": "policy", "generation": "generation", "reward": "policy"}
    on = recipe.roles["reward"].on
    assert on is not None
    assert (on.nodes, on.gpus) == ([1], [4, 5, 6, 7])


def test_every_example_is_named() -> None:
    """And every folder of examples with a recipe stands in the table."""
    folders = sorted(path.parent.name for path in (ROOT / "examples").glob("*/run.py"))
    assert folders == sorted(line.split("`")[1].removeprefix("examples/") for line in TEXT.splitlines() if line.startswith("| `examples/"))


def test_examples_are_complete_recipes() -> None:
    """Each config has roles once its defaults list is resolved, and names the built-in sizes that a laptop holds."""
    from rl_cluster.config_files.recipe_file import load_recipe

    for config in sorted((ROOT / "examples").glob("*/conf/*.yaml")):
        recipe = load_recipe(config)
        assert recipe_from_config(recipe) is recipe
        assert all(role.worker is not None for role in recipe.roles.values()), config
        assert sum(cluster.world_size for cluster in recipe.clusters.values()) <= 8, config
        assert yaml.safe_load(config.read_text(encoding="utf-8"))["mode"] == "up"
