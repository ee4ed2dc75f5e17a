"""The claims L1 to L13: `main` has the paper's main setting, `variations` the others; both use `paths`, `measures`."""
