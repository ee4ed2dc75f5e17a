"""The claims L1 to L13: `main` has the paper's main setting, `variations` the others, `measures` what both read off."""
