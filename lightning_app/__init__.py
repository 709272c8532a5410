"""The application around the tasks: command line, checkpoints, reports."""
