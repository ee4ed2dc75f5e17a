"""`--compile` with code that inductor generates; `tests/experiments/test_compile.py` has the rest without."""

from __future__ import annotations

import pytest

from experiments.test_compile import assert_compiled_trains_as_plain, compiler


@compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
def test_generated_code_trains_as_the_plain_step(tmp_path):
    assert_compiled_trains_as_plain(tmp_path)
