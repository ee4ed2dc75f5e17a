"""Error messages for users."""

from __future__ import annotations

from stagelens.base.errors import EnvironmentFault, StagelensError, UsageError, unknown


def test_the_nearest_name_is_suggested_only_if_it_is_near():
    assert str(unknown("probe", "curvture", ["curvature", "gradient"])) == (
        "unknown probe 'curvture' (did you mean 'curvature'?); known: curvature, gradient"
    )
    assert str(unknown("run", "xyz", ["curvature"], "look there")) == "unknown run 'xyz'; known: curvature; look there"
    assert str(unknown("run", "xyz", [])) == "unknown run 'xyz'; none is known"


def test_the_exit_codes_are_2_for_mistakes_3_for_environment_errors_and_1_for_others():
    assert (UsageError.exit_code, EnvironmentFault.exit_code, StagelensError.exit_code) == (2, 3, 1)
