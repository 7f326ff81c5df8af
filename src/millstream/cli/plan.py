import click


@click.command()
def plan() -> None:
    """Follow a view."""
