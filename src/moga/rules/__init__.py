"""Who gets what: roles, recipes and param groups, as pure functions of a model's structure and of integers."""

from moga.rules.groups import describe as describe
from moga.rules.groups import param_groups as param_groups
from moga.rules.init import initialize_ as initialize_
from moga.rules.recipes import RECIPES as RECIPES
from moga.rules.recipes import Recipe as Recipe
from moga.rules.recipes import resolve_recipe as resolve_recipe
from moga.rules.roles import Assignment as Assignment
from moga.rules.roles import find_roles as find_roles
from moga.rules.transfer import effective_fan as effective_fan
from moga.rules.transfer import initial_std as initial_std
