"""What a finished run says, from its results folder on disk: ``summary.json``, ``report.html``, a table."""
