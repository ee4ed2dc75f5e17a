"""integrations: callbacks that measure inside the training loops of other libraries. Import the library's module."""
